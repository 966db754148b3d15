package forward

// Reason says why a packet was dropped. Every drop has exactly one.
type Reason uint8

const (
	// None means: not dropped.
	None Reason = iota

	// Packets from clients.

	// NoFlow means: not a routable check, and nothing is known about its source.
	NoFlow
	// Empty means: a datagram without a byte; health probes do that.
	Empty
	// Oversize means: larger than the receive buffer, so only a part of it is there.
	Oversize
	// BadSource means: a source that cannot be answered: port 0, multicast,
	// unspecified, link-local (frames have no room for its zone), or an address of
	// this relay's own ingresses.
	BadSource
	// STUNMalformed means: a length, bound or alignment in a STUN message is wrong.
	STUNMalformed
	// STUNFingerprint means: FINGERPRINT is there and wrong, or not the last attribute.
	STUNFingerprint
	// UsernameTooLong means: a USERNAME of 509 bytes or more.
	UsernameTooLong
	// UsernameForm means: a USERNAME that is not two ufrags with a colon between.
	UsernameForm
	// UfragInvalid means: not one of our ufrags: length, alphabet, range or kind.
	UfragInvalid
	// UfragKey means: the ufrag's key id is not in the keyring. After a key rotation:
	// the old key went before its sessions ended, or the new one came too late.
	UfragKey
	// UfragCheck means: the ufrag does not decrypt to a route; a guess, or other keys.
	UfragCheck
	// OtherCluster means: a valid ufrag for another cluster, and no directory of
	// clusters.
	OtherCluster
	// UnknownCluster means: a valid ufrag or route for a cluster that is not in the
	// directory.
	UnknownCluster
	// ClusterUnhealthy means: none of the cluster's relays answers.
	ClusterUnhealthy
	// Unresolved means: a valid ufrag for a host that the resolver does not know.
	Unresolved
	// UpstreamNotAllowed means: the resolved address is outside AllowUpstream.
	UpstreamNotAllowed
	// BadIntegrity means: MESSAGE-INTEGRITY of a check that would make or change a
	// flow is missing or wrong.
	BadIntegrity
	// TableFull means: the flow table is full of confirmed flows.
	TableFull
	// UnverifiedLimit means: the limits for packets without a flow are used up.
	UnverifiedLimit
	// TooLarge means: with its frame header it is larger than a UDP datagram.
	TooLarge
	// UpstreamSilent means: the Host has not been heard of for seconds although
	// packets were sent to it. It is dead, unreachable, or has other trunk keys.
	UpstreamSilent
	// SendUpstream means: the trunk socket did not take the datagram.
	SendUpstream

	// Datagrams from peers.

	// PeerNotAllowed means: a sender outside AllowUpstream.
	PeerNotAllowed
	// TrunkMalformed means: not a trunk datagram, or one with wrong lengths.
	TrunkMalformed
	// TrunkKey means: the trunk key id is not in the keyring.
	TrunkKey
	// TrunkTag means: the authentication tag is wrong.
	TrunkTag
	// TrunkType means: a kind of datagram or frame that a relay has no use for here.
	TrunkType
	// OtherIngress means: a frame for an ingress that is not one of ours.
	OtherIngress
	// BadClient means: a frame for a client address that cannot be sent to, or not
	// from that ingress.
	BadClient
	// SendClient means: the ingress socket did not take the datagram.
	SendClient

	// Frames that are passed on between two tiers of relays.

	// EdgeNotAllowed means: a client's packet from a relay outside AllowEdges, or a
	// return address outside it.
	EdgeNotAllowed
	// NoRoute means: a client's packet from another relay, without a route.
	NoRoute
	// NoHops means: no hops left. Relays that send each other packets of a cluster
	// that is neither's: their directories are wrong.
	NoHops

	// NumReasons is the number of reasons, for arrays of counters.
	NumReasons
)

var reasonNames = [NumReasons]string{
	None:               "none",
	NoFlow:             "no flow",
	Empty:              "empty datagram",
	Oversize:           "oversize datagram",
	BadSource:          "unusable source address",
	STUNMalformed:      "malformed stun",
	STUNFingerprint:    "wrong stun fingerprint",
	UsernameTooLong:    "stun username too long",
	UsernameForm:       "stun username without two ufrags",
	UfragInvalid:       "foreign ufrag",
	UfragKey:           "unknown ufrag key",
	UfragCheck:         "ufrag check failed",
	OtherCluster:       "ufrag of another cluster",
	UnknownCluster:     "unknown cluster",
	ClusterUnhealthy:   "no healthy relay in cluster",
	Unresolved:         "unknown upstream host",
	UpstreamNotAllowed: "upstream not allowed",
	BadIntegrity:       "wrong message integrity",
	TableFull:          "flow table full",
	UnverifiedLimit:    "limit of unverified packets",
	TooLarge:           "too large for a frame",
	UpstreamSilent:     "upstream silent",
	SendUpstream:       "send to upstream failed",
	PeerNotAllowed:     "peer not allowed",
	TrunkMalformed:     "malformed trunk datagram",
	TrunkKey:           "unknown trunk key",
	TrunkTag:           "wrong trunk tag",
	TrunkType:          "unexpected trunk datagram",
	OtherIngress:       "frame for another ingress",
	BadClient:          "frame for an unusable client address",
	SendClient:         "send to client failed",
	EdgeNotAllowed:     "edge not allowed",
	NoRoute:            "frame without a route",
	NoHops:             "no hops left",
}

// String returns the reason as shown in logs, statistics and metrics.
func (r Reason) String() string {
	if r < NumReasons {
		return reasonNames[r]
	}
	return "invalid reason"
}
