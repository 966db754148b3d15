// Package delay is a link between a UDP client and a server that takes a
// stated time in each direction and loses nothing: both only see the link's
// sockets. Time is kept by the Go runtime, in user space.
package delay
