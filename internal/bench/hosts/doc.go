// Package hosts runs the server processes that hostbench compares: usher's
// Host behind usher's relay, and stock Pion on its own UDP mux.
//
// It owns the application that all of them run, the same for each, and the
// control port of a process: HTTP on loopback that takes offers, ends sessions
// and reports goroutines, memory and descriptors. It measures no time and
// decides nothing about load.
package hosts
