package ufrag

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"sync"
)

// ErrSessions is what [Minter.Mint] returns when too many sessions are live: they
// are probably not released.
var ErrSessions = errors.New("ufrag: too many live sessions")

// maxLive bounds what a leak of sessions can take, and keeps the counter from
// ever searching long for a free number: at most 1 number in 256 is taken.
const maxLive = 1 << 24

// A Minter makes the ufrags of one host: a session counter that starts at a
// random number at each boot, so that a host which restarts does not repeat what
// it minted before, and that skips the sessions which are still live. The cipher
// hides the counter. It is safe for concurrent use.
type Minter struct {
	codec Codec
	route Route
	limit int

	mu   sync.Mutex
	next uint32
	live map[uint32]struct{}
}

// NewMinter returns a minter for the host that the route leads to; its Session is
// ignored. A route that the codec refuses is reported by Mint.
func NewMinter(codec Codec, route Route) *Minter {
	var b [4]byte
	_, _ = rand.Read(b[:]) // crypto/rand never returns an error
	return &Minter{
		codec: codec,
		route: route,
		limit: maxLive,
		next:  binary.BigEndian.Uint32(b[:]),
		live:  make(map[uint32]struct{}),
	}
}

// Mint returns a fresh ufrag, its password and its route, whose Session is live
// until [Minter.Release]. An error is the codec's, or [ErrSessions]; the session
// is not live then.
func (m *Minter) Mint() (ufrag, password string, r Route, err error) {
	r = m.route
	if r.Session, err = m.take(); err != nil {
		return "", "", Route{}, err
	}
	ufrag, err = m.codec.Encode(r)
	if err == nil {
		var pw []byte
		pw, err = m.codec.AppendPassword(make([]byte, 0, PasswordLength), []byte(ufrag))
		password = string(pw)
	}
	if err != nil {
		m.Release(r.Session)
		return "", "", Route{}, err
	}
	return ufrag, password, r, nil
}

func (m *Minter) take() (uint32, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.live) >= m.limit {
		return 0, ErrSessions
	}
	for {
		session := m.next
		m.next++
		if _, taken := m.live[session]; !taken {
			m.live[session] = struct{}{}
			return session, nil
		}
	}
}

// Release says that the session has ended, so that its number may be minted again
// once the counter has come round. Releasing a session twice does nothing.
func (m *Minter) Release(session uint32) {
	m.mu.Lock()
	delete(m.live, session)
	m.mu.Unlock()
}

// Live returns the number of sessions that are live.
func (m *Minter) Live() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.live)
}
