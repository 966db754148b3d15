package flowtable

// The list of unconfirmed flows runs through the SSRC fields, which only
// confirmed flows use: [0] is the previous Ref, [1] the next.

func (t *Table) pushUnconfirmed(r Ref) {
	l := t.link(r)
	l.ssrc[0], l.ssrc[1] = uint32(t.uncTail), 0
	if t.uncTail != 0 {
		t.link(t.uncTail).ssrc[1] = uint32(r)
	} else {
		t.uncHead = r
	}
	t.uncTail = r
	t.unconf++
}

func (t *Table) dropUnconfirmed(r Ref) {
	l := t.link(r)
	prev, next := Ref(l.ssrc[0]), Ref(l.ssrc[1])
	if prev != 0 {
		t.link(prev).ssrc[1] = uint32(next)
	} else {
		t.uncHead = next
	}
	if next != 0 {
		t.link(next).ssrc[0] = uint32(prev)
	} else {
		t.uncTail = prev
	}
	l.ssrc[0], l.ssrc[1] = 0, 0
	t.unconf--
}

const (
	// maxExpireSteps bounds what one call of Expire looks at, so that it never
	// delays packets by more than some tens of microseconds.
	maxExpireSteps = 4096
	// sweepsPerTimeout is how often the sweep passes every flow within an idle
	// timeout, so a flow outlives it by at most an eighth.
	sweepsPerTimeout = 8
)

// Expire removes flows whose time is up. Call it once a batch: it does as many
// steps as the time since the last call asks for, at most a fixed number.
// Unconfirmed flows go oldest first; confirmed ones when the sweep passes,
// an eighth of IdleTimeout after their time at the latest, twice that while the
// table grows, if Expire is called often enough. It returns how many flows it removed.
func (t *Table) Expire(now Tick) int {
	removed := 0
	for t.uncHead != 0 && removed < maxExpireSteps && t.expired(t.at(t.uncHead), now) {
		t.expire(t.uncHead)
		removed++
	}
	elapsed := t.sweepTime.since(now)
	if elapsed == 0 {
		return removed
	}
	t.sweepTime = now
	round := uint64(max(1, t.idle/sweepsPerTimeout))
	t.sweepDebt = min(t.sweepDebt+uint64(t.high)*uint64(elapsed), uint64(t.high)*round)
	steps := min(t.sweepDebt/round, maxExpireSteps)
	t.sweepDebt -= steps * round
	for ; steps > 0; steps-- {
		if t.sweepPos++; t.sweepPos > t.high {
			t.sweepPos = 1
		}
		s := t.at(t.sweepPos)
		switch {
		case s.state == 0:
		case t.expired(s, now):
			t.expire(t.sweepPos)
			removed++
		default:
			t.age(t.sweepPos, s, now)
		}
	}
	return removed
}

// oldest is the age in milliseconds at which a flow's ownership and a claim to it
// stop to age: the sweep is back before it could be 25 days, and negative.
const oldest = 7 * 24 * 60 * 60 * 1000

// age keeps the ticks of a flow that lives on for weeks within what a Tick can tell.
func (t *Table) age(r Ref, s *slot, now Tick) {
	if s.owned.since(now) > oldest {
		s.owned = now - oldest
	}
	if s.flags&flagContended != 0 {
		if _, age, _ := t.Contender(r, now); age > oldest {
			s.flags &^= flagContended
		}
	}
}

func (t *Table) expired(s *slot, now Tick) bool {
	limit := t.idle
	if s.state == Unconfirmed {
		limit = t.unconfIdle
	}
	return s.last.since(now) > limit
}

func (t *Table) expire(r Ref) {
	t.drop(r, Expired)
	t.counters.Expired++
}

// Slots is how many slots a whole round of Walk looks at.
func (t *Table) Slots() int { return int(t.high) }

// Walk calls visit for flows until it has looked at limit slots or reached the
// end, beginning at cursor (0 at first), and returns the cursor for the next
// call, 0 at the end. The caller may release the lock between calls; a flow
// that stays is then visited exactly once.
func (t *Table) Walk(cursor uint32, limit int, visit func(Flow)) uint32 {
	for ; limit > 0; limit-- {
		if cursor >= uint32(t.high) {
			return 0
		}
		cursor++
		if t.at(Ref(cursor)).state != 0 {
			visit(t.Flow(Ref(cursor)))
		}
	}
	if cursor >= uint32(t.high) {
		return 0
	}
	return cursor
}
