package icelite

import "github.com/usher-rtc/usher/internal/stun"

// replaySize is how many of the client's transactions are remembered: more
// than a minute of any client measured. An older one, sent again from another
// address, opens an unproven path at most, which then leads nowhere.
const replaySize = 32

// replay remembers which path brought a transaction first.
type replay struct {
	entries [replaySize]replayEntry
	next    int
}

type replayEntry struct {
	id     stun.TransactionID
	serial uint32 // of the path; 0 marks a free entry
}

func (r *replay) find(id *stun.TransactionID) (serial uint32, ok bool) {
	for i := range r.entries {
		if e := &r.entries[i]; e.serial != 0 && e.id == *id {
			return e.serial, true
		}
	}
	return 0, false
}

func (r *replay) add(id *stun.TransactionID, serial uint32) {
	r.entries[r.next] = replayEntry{id: *id, serial: serial}
	r.next = (r.next + 1) % replaySize
}
