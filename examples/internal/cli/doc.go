// Package cli is what the example programs share as programs: flags for
// addresses, prefixes and ingresses, one clear line for an error, an HTTP server
// and an orderly end on SIGTERM. Nothing in it is about WebRTC.
package cli
