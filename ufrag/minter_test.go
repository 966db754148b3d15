package ufrag

import (
	"errors"
	"math"
	"sync"
	"testing"

	"github.com/usher-rtc/usher/internal/race"
)

var hostRoute = Route{Kind: KindDirectory, Cluster: 3, Host: 17}

// C19, C25: ten million sessions of one host that never end: every ufrag is letters
// and digits of the one length and decodes to its route, and no two are equal. As
// each decodes to its own session, it is enough that no session comes twice.
func TestMintTenMillion(t *testing.T) {
	n := 10_000_000
	if testing.Short() || race.Enabled {
		n = 100_000
	}
	codec := NewCodec(testKeyring(t))
	m := NewMinter(codec, hostRoute)
	first := m.next
	seen := make([]bool, n)
	var isDigit [256]bool
	for i := range len(refAlphabet) {
		isDigit[refAlphabet[i]] = true
	}
	for i := range n {
		u, pw, r, err := m.Mint()
		if err != nil {
			t.Fatal(err)
		}
		if len(u) != Length || len(pw) != PasswordLength || !r.SameHost(hostRoute) {
			t.Fatalf("%d: %q, %q, %v", i, u, pw, r)
		}
		for _, c := range []byte(u) {
			if !isDigit[c] {
				t.Fatalf("%d: %q", i, u)
			}
		}
		got, err := codec.Decode([]byte(u))
		if err != nil || got != r {
			t.Fatalf("%d: %q decodes to %v, %v; want %v", i, u, got, err, r)
		}
		if k := got.Session - first; int64(k) >= int64(n) || seen[k] {
			t.Fatalf("%d: session %d is minted twice or far off %d", i, got.Session, first)
		} else {
			seen[k] = true
		}
	}
	if m.Live() != n {
		t.Errorf("%d live", m.Live())
	}
}

// C25: a host that restarts begins elsewhere, whatever its clock says.
func TestMinterStartsAtRandom(t *testing.T) {
	codec := NewCodec(testKeyring(t))
	seen := make(map[string]bool)
	for range 50 {
		m := NewMinter(codec, hostRoute)
		for range 50 {
			u, _, _, err := m.Mint()
			if err != nil {
				t.Fatal(err)
			}
			if seen[u] {
				t.Fatalf("%s was minted before the restart", Short(u))
			}
			seen[u] = true
		}
	}
}

func TestMinterSkipsLiveSessions(t *testing.T) {
	m := NewMinter(NewCodec(testKeyring(t)), hostRoute)
	mint := func() uint32 {
		t.Helper()
		_, _, r, err := m.Mint()
		if err != nil {
			t.Fatal(err)
		}
		return r.Session
	}
	m.next = math.MaxUint32 - 1
	for _, want := range []uint32{math.MaxUint32 - 1, math.MaxUint32, 0, 1} {
		if got := mint(); got != want {
			t.Errorf("session %d, want %d", got, want)
		}
	}
	m.Release(math.MaxUint32)
	m.Release(math.MaxUint32)
	m.Release(12345)
	m.next = math.MaxUint32 - 1 // once round
	for _, want := range []uint32{math.MaxUint32, 2, 3} {
		if got := mint(); got != want {
			t.Errorf("second round: session %d, want %d", got, want)
		}
	}
	if m.Live() != 6 {
		t.Errorf("%d live", m.Live())
	}
}

func TestMinterLimit(t *testing.T) {
	m := NewMinter(NewCodec(testKeyring(t)), hostRoute)
	m.limit = 2
	_, _, r, err := m.Mint()
	if err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := m.Mint(); err != nil {
		t.Fatal(err)
	}
	if u, pw, r, err := m.Mint(); !errors.Is(err, ErrSessions) || u != "" || pw != "" || r != (Route{}) {
		t.Fatalf("above the limit: %q, %q, %v, %v", u, pw, r, err)
	}
	m.Release(r.Session)
	if _, _, _, err := m.Mint(); err != nil {
		t.Errorf("after a release: %v", err)
	}
}

// A session whose ufrag could not be made is not live for ever.
func TestMinterReleasesAfterError(t *testing.T) {
	for _, tt := range []struct {
		codec Codec
		route Route
		want  error
	}{
		{NewCodec(testKeyring(t)), Route{}, ErrRoute},
		{NewCodec(new(Keyring)), hostRoute, ErrKeyID},
		{noPassword{NewCodec(testKeyring(t))}, hostRoute, ErrKeyID},
	} {
		m := NewMinter(tt.codec, tt.route)
		if u, pw, r, err := m.Mint(); !errors.Is(err, tt.want) || u != "" || pw != "" || r != (Route{}) || m.Live() != 0 {
			t.Errorf("%q, %q, %v, %v; %d live", u, pw, r, err, m.Live())
		}
	}
}

type noPassword struct{ Codec }

func (noPassword) AppendPassword(dst, _ []byte) ([]byte, error) { return dst, ErrKeyID }

func TestMinterConcurrently(t *testing.T) {
	m := NewMinter(NewCodec(testKeyring(t)), hostRoute)
	const workers, each = 8, 500
	minted := make([]map[uint32]bool, workers)
	var wg sync.WaitGroup
	for w := range workers {
		minted[w] = make(map[uint32]bool)
		wg.Go(func() {
			for i := range each {
				_, _, r, err := m.Mint()
				if err != nil {
					t.Error(err)
					return
				}
				if i%2 == 0 {
					m.Release(r.Session)
				}
				minted[w][r.Session] = true
			}
		})
	}
	wg.Wait()
	all := make(map[uint32]bool)
	for _, set := range minted {
		for s := range set {
			if all[s] {
				t.Errorf("session %d twice", s)
			}
			all[s] = true
		}
	}
	if len(all) != workers*each || m.Live() != workers*each/2 {
		t.Errorf("%d minted, %d live", len(all), m.Live())
	}
}
