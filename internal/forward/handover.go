package forward

import "github.com/usher-rtc/usher/flowtable"

// Admits reports whether a flow that another process hands over may live here. Its
// configuration may have been another one: what it allowed need not be allowed here.
func (c *Core) Admits(f *flowtable.Flow) bool {
	switch {
	case !c.serves(f.Key.Ingress), !usable(f.Key.Client), c.ours(f.Key.Client, f.Local):
		return false
	case c.remote(f.Route):
		return c.tiers.clusters != nil // which relay, is decided for each packet
	}
	return c.PeerAllowed(f.Upstream)
}
