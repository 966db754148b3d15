package relay

import "github.com/usher-rtc/usher/internal/forward"

// hints has the drops that a wrong configuration causes, with what to do. The
// others happen at any relay that strangers can reach; docs/troubleshooting.md has
// all of them.
var hints = [forward.NumReasons]string{
	forward.UfragKey:           "a Host mints with a key that Codec does not have: give relays a new key first, then let Hosts mint with it",
	forward.UfragCheck:         "if calls fail, a Host has another key of the same id: give both the same keys; otherwise strangers guess",
	forward.OtherCluster:       "a Host has another Cluster than this relay, and there is no Clusters to find a relay of it",
	forward.UnknownCluster:     "Clusters has no relays for the cluster of a Host",
	forward.ClusterUnhealthy:   "the relays that Clusters names do not answer: wrong addresses, other EdgeKeys, or a firewall between",
	forward.Unresolved:         "Resolver does not know the HostID of a Host",
	forward.UpstreamNotAllowed: "a Host's trunk address is outside AllowUpstream",
	forward.BadIntegrity:       "a Host's Codec derives other passwords, or its application changed the answer's ice-pwd",
	forward.TableFull:          "more clients than MaxFlows, or a flood",
	forward.UpstreamSilent:     "a Host does not answer: it is dead, a firewall is between, or it has other TrunkKeys; its own log may say which",
	forward.PeerNotAllowed:     "trunk datagrams come from outside AllowUpstream: a Host with another source address, or a stranger",
	forward.TrunkKey:           "a Host seals with a key that TrunkKeys does not have",
	forward.TrunkTag:           "what a Host sends does not open: give it and this relay the same TrunkKeys",
	forward.OtherIngress:       "a Host answers for an ingress id that this relay does not have: every relay behind one address needs the same ids",
	forward.EdgeNotAllowed:     "another relay's packets come from outside AllowEdges",
	forward.NoHops:             "directories of clusters lead in a circle",
}
