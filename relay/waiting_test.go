package relay

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/usher-rtc/usher/flowtable"
	"github.com/usher-rtc/usher/internal/udpbatch"
)

func waitingKey(n int) flowtable.Key {
	return flowtable.Key{Client: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 1, byte(n >> 8), byte(n)}), 9), Ingress: 7}
}

func TestWaitingRoomIsBounded(t *testing.T) {
	r := newWaitingRoom()
	now := time.Unix(1_000_000, 0)
	p := &udpbatch.Packet{Data: make([]byte, maxWaitingSize)}
	big := &udpbatch.Packet{Data: make([]byte, maxWaitingSize+1)}
	packets := 0
	for n := 0; !r.full(); n++ {
		q := r.open(waitingKey(n), now)
		if r.add(q, big) {
			t.Fatal("a packet that is too large waits")
		}
		for range maxWaitingEach + 1 {
			if r.add(q, p) {
				packets++
			}
		}
	}
	if len(r.questions) != maxQuestions || packets != maxWaiting || r.packets != maxWaiting {
		t.Fatalf("%d questions, %d packets, %d counted", len(r.questions), packets, r.packets)
	}
	for _, q := range r.questions {
		r.close(q)
	}
	if len(r.questions) != 0 || r.packets != 0 || len(r.spare) != maxWaiting || r.oldest != nil || r.newest != nil || r.full() {
		t.Fatalf("after all: %+v", r)
	}
}

// Random use against a plain model.
func TestWaitingRoomAgreesWithModel(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		r := newWaitingRoom()
		type entry struct {
			at      time.Time
			packets []string
			expired bool
		}
		model := map[flowtable.Key]*entry{}
		now := time.Unix(1_000_000, 0)
		const limit = 50 * time.Millisecond
		read := func(q *question) (packets []string) {
			for _, i := range q.packets[:q.n] {
				packets = append(packets, string(r.slots[i].data))
			}
			return packets
		}
		for step := range 5000 {
			now = now.Add(time.Duration(rnd.IntN(2)) * time.Millisecond)
			k := waitingKey(rnd.IntN(400))
			q := r.questions[k]
			if (q != nil) != (model[k] != nil) {
				t.Fatal("the questions differ")
			}
			switch op := rnd.IntN(10); {
			case q == nil && !r.full():
				r.open(k, now)
				model[k] = &entry{at: now}
			case q == nil:
			case op < 5:
				data := fmt.Sprint("packet ", step)
				if r.add(q, &udpbatch.Packet{Data: []byte(data)}) {
					model[k].packets = append(model[k].packets, data)
				}
			case op < 7:
				if fmt.Sprint(read(q)) != fmt.Sprint(model[k].packets) {
					t.Fatalf("%q wait, want %q", read(q), model[k].packets)
				}
				r.close(q)
				delete(model, k)
			case op < 8:
				r.leave(q)
				model[k].packets = nil
				if rnd.IntN(2) == 0 {
					r.left()
				}
			}
			late, wait := r.late(now, limit)
			oldest := time.Duration(-1)
			for _, e := range model {
				if !e.expired {
					oldest = max(oldest, now.Sub(e.at))
				}
			}
			switch {
			case late != nil:
				if age := now.Sub(late.at); age < limit || age != oldest {
					t.Fatalf("late after %v, the oldest is %v", age, oldest)
				}
				r.drop(late)
				late.expired = true
				model[late.key].packets, model[late.key].expired = nil, true
			case oldest >= limit:
				t.Fatalf("nobody is late, though one waits for %v", oldest)
			case oldest >= 0 && wait != limit-oldest:
				t.Fatalf("wait %v, want %v", wait, limit-oldest)
			}
			sum := 0
			for _, e := range model {
				sum += len(e.packets)
			}
			if sum != r.packets || sum+len(r.spare)+len(r.leaving) != maxWaiting {
				t.Fatalf("%d packets, counted %d; %d spare, %d leaving", sum, r.packets, len(r.spare), len(r.leaving))
			}
		}
	}
}
