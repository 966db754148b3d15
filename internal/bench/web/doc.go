// Package web is the client's side of what servers of a measurement serve over
// HTTP: pages of JSON ([Get]), records of audio ([Audio]), and calls ([Offer]).
//
// It owns no connections: the client that is passed in does, and says where they
// come from. It serves nothing.
package web
