package meter

import (
	"encoding/gob"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestUnwrapper(t *testing.T) {
	const base = 1 << 16
	for _, tt := range []struct {
		name string
		in   []uint16
		want []uint32
	}{
		{"in order", []uint16{5, 6, 7}, []uint32{base + 5, base + 6, base + 7}},
		{"late", []uint16{5, 7, 6, 8}, []uint32{base + 5, base + 7, base + 6, base + 8}},
		{"around", []uint16{65534, 65535, 0, 1}, []uint32{base + 65534, base + 65535, base + 65536, base + 65537}},
		{"late around", []uint16{65535, 1, 0}, []uint32{base + 65535, base + 65537, base + 65536}},
		{"before the first", []uint16{0, 65535}, []uint32{base, base - 1}},
	} {
		var u Unwrapper
		for i, n := range tt.in {
			if got := u.Next(n); got != tt.want[i] {
				t.Errorf("%s: number %d is %d, want %d", tt.name, i, got, tt.want[i])
			}
		}
	}
}

// TestLog compares a full ring with a list of everything.
func TestLog(t *testing.T) {
	var l Log
	var all []Event
	for i := range kept + 500 {
		e := Event{Seq: uint32(i), At: int64(10 * i)}
		l.Add(e.Seq, e.At)
		all = append(all, e)
		if i == 2 || i == kept-1 || i == kept || i == kept+499 {
			newest := all[max(0, len(all)-kept):]
			if got := l.Since(0); !reflect.DeepEqual(got, newest) {
				t.Fatalf("after %d events: %d of them from %+v, want %d from %+v", i+1, len(got), got[0], len(newest), newest[0])
			}
		}
	}
	if got := l.Since(int64(10 * (kept + 498))); len(got) != 2 || got[0].Seq != kept+498 {
		t.Errorf("the last two: %+v", got)
	}
	if got := l.Since(1 << 40); len(got) != 0 {
		t.Errorf("of the future: %+v", got)
	}
	if got := l.Total(); got != kept+500 {
		t.Errorf("%d in all", got)
	}
}

// TestPacer checks the pace of several senders, and that one that was removed is
// not called again.
func TestPacer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPacer()
		var times [3][]time.Time
		var remove [3]func()
		for i := range times {
			remove[i] = p.Add(func() { times[i] = append(times[i], time.Now()) })
		}
		time.Sleep(time.Second + time.Millisecond/2)
		remove[0]()
		stopped := len(times[0])
		time.Sleep(time.Second)
		p.Close()
		if len(times[0]) != stopped || stopped != 50 {
			t.Errorf("%d calls in a second, then %d more after it was removed", stopped, len(times[0])-stopped)
		}
		for i, all := range times {
			for j := 1; j < len(all); j++ {
				if d := all[j].Sub(all[j-1]); d != Interval {
					t.Fatalf("sender %d: call %d after %v", i, j, d)
				}
			}
		}
		if len(times[1]) != 100 || times[1][0].Equal(times[2][0]) {
			t.Errorf("%d calls in 2 s; the first two senders at %v and %v", len(times[1]), times[1][0], times[2][0])
		}
		if late := p.Late(); late > 2*time.Millisecond {
			t.Errorf("late by %v on a machine that does nothing else", late)
		}
	})
}

// TestPacerHeldUp checks what is made up for, and said, after a pause of the machine.
func TestPacerHeldUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPacer()
		held := false
		calls := 0
		p.Add(func() {
			calls++
			if !held {
				held = true
				time.Sleep(time.Second)
			}
		})
		time.Sleep(2*time.Second + time.Millisecond/2)
		p.Close()
		// One, a second without any, 80 ms of it made up for, and another second.
		if calls < 50 || calls > 57 {
			t.Errorf("%d calls, want those of one second and four more", calls)
		}
		if late := p.Late(); late < time.Second || late > time.Second+Interval {
			t.Errorf("late by %v, want 1 s", late)
		}
		if late := p.Late(); late != 0 {
			t.Errorf("late by %v since it was last asked", late)
		}
	})
}

func TestAppRefuses(t *testing.T) {
	a := NewApp()
	defer a.Close()
	for _, tt := range []struct {
		method, target, body string
		want                 int
	}{
		{http.MethodGet, "/debug/audio?since=0", "", http.StatusOK},
		{http.MethodGet, "/debug/audio", "", http.StatusBadRequest},
		{http.MethodGet, "/debug/audio?since=now", "", http.StatusBadRequest},
		{http.MethodPut, "/debug/audio", "false\n", http.StatusNoContent},
		{http.MethodPut, "/debug/audio", "loud", http.StatusBadRequest},
		{http.MethodPut, "/debug/audio", strings.Repeat("true", 100), http.StatusBadRequest},
		{http.MethodPost, "/debug/audio", "true", http.StatusMethodNotAllowed},
	} {
		w := httptest.NewRecorder()
		a.ServeHTTP(w, httptest.NewRequest(tt.method, tt.target, strings.NewReader(tt.body)))
		if w.Code != tt.want {
			t.Errorf("%s %s %q: %d, want %d", tt.method, tt.target, tt.body, w.Code, tt.want)
		}
		if tt.method == http.MethodGet && w.Code == http.StatusOK {
			var r Report
			if err := gob.NewDecoder(w.Body).Decode(&r); err != nil || len(r.Calls) != 0 {
				t.Errorf("report: %+v, %v", r, err)
			}
		}
	}
	if !a.quiet.Load() {
		t.Error("PUT false did not make the application silent")
	}
}
