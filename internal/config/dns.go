package config

import "strings"

// DNSPattern checks that a field is a DNS name with one %d in it, and makes it an
// absolute one, to which search domains do not apply.
func DNSPattern(field string, pattern *string) error {
	before, after, ok := strings.Cut(*pattern, "%d")
	if !ok || strings.Contains(before, "%") || strings.Contains(after, "%") {
		return Errorf(field, "%q must have exactly one %%d and no other %%", *pattern)
	}
	if !strings.HasSuffix(*pattern, ".") {
		*pattern += "."
	}
	return nil
}

// DNSNetwork checks that a field is a network for net.Resolver.LookupNetIP: "ip4",
// "ip6", or "ip" for both, which an empty one becomes.
func DNSNetwork(field string, network *string) error {
	switch *network {
	case "":
		*network = "ip"
	case "ip", "ip4", "ip6":
	default:
		return Errorf(field, "must be ip, ip4 or ip6, not %q", *network)
	}
	return nil
}
