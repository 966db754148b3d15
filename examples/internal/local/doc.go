// Package local is the network side of a program that needs no other and no
// configuration: a relay inside the process, with random keys, and what a
// transceiver beside it has to know. It owns the choice of the addresses that
// browsers on this machine can reach. It refuses to be more than one machine:
// see relayd and transceiverd for that.
package local
