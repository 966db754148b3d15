// Package load makes and measures packet load on one Linux machine: a raw
// socket that sends UDP datagrams from many addresses ([Raw]), sockets that
// take datagrams for many addresses in batches ([Sink]), and processes that
// are pinned, stopped, resumed and accounted ([Process]).
//
// It owns no policy: what is sent, when, and what the figures mean is decided
// by the commands. It sends to loopback or inside network namespaces that the
// caller made, and signals only processes that it started.
package load
