// Package geo picks, for each signalling request, the ingresses that its answer
// advertises: those near the client, in order of preference.
//
// A [Steering] knows places: a region's name, where it is, and the public
// addresses of the relays there. What it knows about a client it has from the
// request, in this order: a header with the region, headers with coordinates,
// both put there by a CDN or load balancer in front, and a table of address
// prefixes. Its Select method is the SelectIngresses of a transceiver.Config:
//
//	steering, err := geo.New(geo.Config{ … })
//	config.SelectIngresses = steering.Select
//
// The places after the first are in the answer so that a client whose nearest
// relay does not answer connects through another. That is at the start: a browser
// that has connected does not fail over to another candidate by itself. For a call
// whose ingress is gone an application restarts ICE with other ingresses, those
// that [Steering.For] returns when it is told to avoid the present one.
//
// It owns the choice. It refuses to find out where a client is by itself: it opens
// no database of addresses and measures nothing. A client that sends such a header
// itself is led to a place of its choice and harms only itself, but a proxy in
// front should remove it.
package geo
