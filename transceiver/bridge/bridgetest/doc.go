// Package bridgetest has the tests that every service must pass that speaks the
// protocol of docs/bridge.md, in whatever language.
//
// It owns a transceiver made of nothing but the page (Run), the small
// application that a service runs for the tests (Echo is it in Go), and a client
// for the tests of a service with an application of its own (Caller). It refuses
// to use package bridge for what goes over the wire, so that the two check each
// other.
package bridgetest
