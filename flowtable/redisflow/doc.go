// Package redisflow keeps flows in Redis or Valkey: one node, a Sentinel set or a
// Cluster.
//
// It owns the commands and the set-up of a client that keeps its deadlines. It
// refuses to interpret values, which the relay seals and opens, and to retry for
// long: a relay would rather know at once that there is no answer.
//
// # What is in Redis
//
// One string a flow: the prefix, then ingress id and client, as in
// "usher:7/203.0.113.9:54321", and a value of 34 bytes that docs/wire.md
// describes. Entries are written with SET and a life of the relay's StoreTTL, in
// pipelines, and read with GETRANGE, so that a value of a size that no relay has
// written costs neither memory nor time. A set of flows needs some 200 bytes of
// Redis memory each.
//
// Every two seconds a relay asks with INFO server whether the server is still the same
// process, and writes its live flows again if not. A login with an ACL needs SET,
// GETRANGE and, for that, INFO.
//
// Who can read the Redis sees clients' addresses and internal addresses of
// Hosts. Who can write to it can delete entries, which costs recovery time, and
// nothing else: the relay believes no value without its MAC.
//
// Set maxmemory and an eviction policy (allkeys-lru or volatile-ttl): an evicted
// entry is a miss. Persistence is of no use; entries are renewed while their
// flows live.
package redisflow
