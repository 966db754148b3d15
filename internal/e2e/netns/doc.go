// Package netns gives a test a network of its own: a Linux network namespace
// without a name, which goes away with its last process and descriptor.
//
// It owns the namespace and the way into it. It makes no interfaces but the
// loopback one; tests add others with ip(8).
package netns
