// Package callers makes calls to the servers of hostbench with Pion clients
// that cost as little as possible: one socket each, no interceptors, shared
// codecs and certificate.
//
// It owns the client ([Caller]), many of them in one process ([Fleet]), and that
// process' control port. It knows nothing about what kind of server it calls.
package callers
