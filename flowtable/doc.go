// Package flowtable keeps the flows of one relay worker: which client address
// on which ingress belongs to which route and upstream.
//
// [Table] owns the memory layout, the indexes, the expiry and the budgets. It
// does no I/O, starts no goroutine and reads no clock: the caller passes the time
// in as a [Tick]. It takes no decision either; who may own an address is
// decided by the caller.
//
// [FlowStore] is where relays keep flows beyond their own life: its contract, a
// [MemoryStore], and the [Value] that goes into it. Package flowtest has the tests
// that every store must pass, and module redisflow a store in Redis or Valkey.
//
// # Memory
//
// A flow is a slot of 88 bytes without a pointer, so the garbage collector
// never looks at flows, and is found through three indexes: by client and
// ingress, by client IP address, and by client IP address and SSRC. All told a
// full table needs less than 128 bytes a flow; a test measures it. The indexes
// are laid out for MaxFlows when the table is made (about 29 bytes for each
// flow of it; the system hands out such memory page by page on first use).
// Slots come in chunks as flows do and stay for reuse, so there is neither a
// rehash nor a copy that could stall a worker.
//
// # Locking
//
// Every method needs the table's lock ([Table.Lock]), unless it says otherwise.
// The owner takes it once a batch; it is contended only when another worker
// looks for a flow that the kernel moved to it.
//
// # Life of a flow
//
// A flow is unconfirmed until the caller confirms it. Unconfirmed flows have a
// short life and a budget of their own and are the first to go. Only traffic
// from the upstream ([Table.Touch]) keeps a flow alive: otherwise a client
// could hold a dead session's memory for ever. Expiry is incremental; a call
// of [Table.Expire] looks at a bounded number of slots.
package flowtable
