// Package sim plays one day of one region, call by call: calls begin and end,
// clients send packets and checks, relays write flows to Redis and forget them,
// and at the day's peak relays and a zone are lost.
//
// It owns the play and what was counted in it. It refuses every formula: nothing
// here knows Little's law or a mean that is not a sum over what happened, and it
// imports neither the model nor anything that the model imports but the inputs.
package sim
