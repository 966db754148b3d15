// Package cluster is the directory of clusters: it says at which trunk addresses
// the relays of another cluster take packets of an edge's clients.
//
// A relay near its users gets checks whose ufrags lead to sessions anywhere. The
// ufrag says which cluster; the directory says where that is: [Static] from a
// table in memory, [File] from a text file that is read again when it changes,
// [DNS] from names that are looked up in the background. All answer from a
// snapshot.
//
// It owns the lists. It refuses to judge them: which of a cluster's addresses
// answer, and to which a client's packets go, is for the relay that sends them; it
// asks each with keepalives of its own. Nor does it say where sessions are: that
// is in the ufrag.
package cluster
