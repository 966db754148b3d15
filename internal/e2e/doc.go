// Package e2e holds the end-to-end tests: real browsers and a Pion client
// against the example programs, run as processes, over real sockets.
//
// It is a module of its own so that its dependencies stay out of the library's
// module graph. A part that is not installed (a browser, Node, root for network
// namespaces) skips its tests with a message that says what to install; with
// USHER_REQUIRE_PARTS=1 in the environment, as in CI, it fails them.
package e2e
