// Package callers makes calls with Pion clients that cost as little as possible:
// one socket each, no interceptors, shared codecs and certificate.
//
// It owns the client ([Caller]), one that speaks and keeps a record ([Speaker]),
// many clients in one process ([Fleet]), and that process' control port. It knows
// nothing about what kind of server it calls.
package callers
