package transceiver

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pion/rtp"

	"github.com/usher-rtc/usher/internal/race"
)

// rtpPacket is packet n of a stream of 20 ms frames, whose payload says so.
func rtpPacket(n int) []byte { return rtpPacketAt(n, int64(n)) }

// rtpPacketAt is packet n with another place in time, in frames.
func rtpPacketAt(n int, frame int64) []byte {
	payload := []byte{0x78, 0, 0, 0, 0}
	binary.BigEndian.PutUint32(payload[1:], uint32(n))
	return marshal(rtp.Header{
		Version: 2, PayloadType: 111, SSRC: 7, SequenceNumber: uint16(n), Timestamp: uint32(frame * 960),
	}, payload)
}

func marshal(h rtp.Header, payload []byte) []byte {
	b, err := (&rtp.Packet{Header: h, Payload: payload}).Marshal()
	if err != nil {
		panic(err)
	}
	return b
}

func newTestIn(cfg AudioConfig) (in *audioIn, stop func(error)) {
	if err := cfg.validate(); err != nil {
		panic(err)
	}
	ended := make(chan struct{})
	var cause error
	in = &audioIn{hold: cfg.JitterBuffer, limit: cfg.ReceiveQueue, stop: ended, stopErr: func() error { return cause }}
	in.init()
	in.begin(7, 111, 1)
	return in, func(err error) {
		cause = err
		close(ended)
	}
}

// got is a frame as a test sees it: "3" is packet 3, "5+1" is packet 5 with one
// lost before it.
func got(f Frame) string {
	s := fmt.Sprint(binary.BigEndian.Uint32(f.Payload[1:]))
	if f.Lost > 0 {
		s += fmt.Sprintf("+%d", f.Lost)
	}
	return s
}

// ready returns what Next has without waiting.
func ready(in *audioIn) (out []string) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for {
		in.mu.Lock()
		n := in.queue.len()
		in.mu.Unlock()
		if n == 0 {
			return out
		}
		f, err := in.next(ctx)
		if err != nil {
			return append(out, err.Error())
		}
		out = append(out, got(f))
	}
}

func TestFramesComeInOrder(t *testing.T) {
	const hold = 60 * time.Millisecond
	for name, c := range map[string]struct {
		hold    time.Duration
		packets []int
		want    []string
	}{
		"in order":                    {0, []int{1, 2, 3}, []string{"1", "2", "3"}},
		"one lost":                    {0, []int{1, 3, 4}, []string{"1", "3+1", "4"}},
		"late is dropped":             {0, []int{1, 3, 2, 4}, []string{"1", "3+1", "4"}},
		"twice":                       {0, []int{1, 1, 2, 2, 1}, []string{"1", "2"}},
		"the sequence wraps":          {0, []int{65534, 65535, 65537, 65538}, []string{"65534", "65535", "65537+1", "65538"}},
		"buffered: in order":          {hold, []int{1, 2, 3}, []string{"1", "2", "3"}},
		"buffered: swapped":           {hold, []int{1, 3, 2, 4}, []string{"1", "2", "3", "4"}},
		"buffered: reversed":          {hold, []int{1, 5, 4, 3, 2, 6}, []string{"1", "2", "3", "4", "5", "6"}},
		"buffered: twice":             {hold, []int{1, 3, 3, 1, 2, 2, 3}, []string{"1", "2", "3"}},
		"buffered: waits for it":      {hold, []int{1, 3, 4}, []string{"1"}},
		"buffered: wraps":             {hold, []int{65535, 65537, 65536}, []string{"65535", "65536", "65537"}},
		"buffered: more than fits":    {hold, []int{1, 3, 3 + reorderWindow}, []string{"1", "3+1"}},
		"buffered: much more":         {hold, []int{1, 3, 67, 68}, []string{"1", "3+1", "67+63", "68"}},
		"buffered: a jump":            {hold, []int{1, 1000, 1001}, []string{"1", "1000+998", "1001"}},
		"a stray packet":              {0, []int{1, 40001, 2, 3}, []string{"1", "2", "3"}},
		"the sender starts again":     {0, []int{1, 40001, 40002, 40003}, []string{"1", "40002", "40003"}},
		"buffered: it starts again":   {hold, []int{1, 3, 40001, 40002, 40003}, []string{"1", "3+1", "40002", "40003"}},
		"earlier than the first":      {0, []int{10, 9, 11}, []string{"10", "11"}},
		"buffered: earlier than that": {hold, []int{10, 9, 11}, []string{"10", "11"}},
	} {
		t.Run(name, func(t *testing.T) {
			in, _ := newTestIn(AudioConfig{JitterBuffer: c.hold})
			now := time.Now()
			for _, n := range c.packets {
				in.receive(now, rtpPacket(n))
			}
			if got := ready(in); !slices.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func TestGapIsGivenUpInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, _ := newTestIn(AudioConfig{JitterBuffer: 60 * time.Millisecond})
		began := time.Now()
		for _, n := range []int{1, 3, 4, 6} {
			in.receive(time.Now(), rtpPacket(n))
			time.Sleep(10 * time.Millisecond)
		}
		for _, c := range []struct {
			want string
			at   time.Duration
		}{{"1", 40}, {"3+1", 70}, {"4", 70}, {"6+1", 90}} {
			f, err := in.next(patient(t))
			if at := time.Since(began); err != nil || got(f) != c.want || at != c.at*time.Millisecond {
				t.Errorf("%v %v after %v, want %s after %d ms", got(f), err, at, c.want, c.at)
			}
		}
	})
}

// TestOrderHoldsWhateverTheNetworkDoes compares with what must hold for any
// order of arrival: frames once, ascending, and every gap accounted for.
func TestOrderHoldsWhateverTheNetworkDoes(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		hold := []time.Duration{0, 40 * time.Millisecond, time.Second}[rng.IntN(3)]
		in, _ := newTestIn(AudioConfig{JitterBuffer: hold, ReceiveQueue: maxReceiveQueue})
		base := rng.IntN(1 << 16)
		var arrivals []int
		for i := range 500 {
			if i > 0 && rng.IntN(10) == 0 {
				continue // lost
			}
			arrivals = append(arrivals, base+i)
			if rng.IntN(10) == 0 {
				arrivals = append(arrivals, base+i)
			}
		}
		spread := rng.IntN(8)
		for i := 1; i < len(arrivals); i++ { // the first one stays, so that it is known
			if j := min(i+rng.IntN(spread+1), len(arrivals)-1); rng.IntN(4) == 0 {
				arrivals[i], arrivals[j] = arrivals[j], arrivals[i]
			}
		}
		now := time.Now()
		for _, n := range arrivals {
			now = now.Add(18 * time.Millisecond)
			in.receive(now, rtpPacket(n))
		}
		in.finish()
		next, lost := base, 0
		for {
			f, err := in.next(patient(t))
			if err == io.EOF {
				break
			}
			n := int(binary.BigEndian.Uint32(f.Payload[1:]))
			if n < next || f.Lost != n-next {
				t.Fatalf("seed %d: packet %d with %d lost, next was %d", seed, n-base, f.Lost, next-base)
			}
			if want := time.Duration(n-base) * 20 * time.Millisecond; f.Time != want {
				t.Fatalf("seed %d: packet %d at %v, want %v", seed, n-base, f.Time, want)
			}
			next, lost = n+1, lost+f.Lost
			if hold == time.Second && !slices.Contains(arrivals, n) {
				t.Fatalf("seed %d: packet %d from nowhere", seed, n-base)
			}
		}
		if hold == time.Second {
			want := 0
			for n := base; n < next; n++ {
				if !slices.Contains(arrivals, n) {
					want++
				}
			}
			if lost != want {
				t.Errorf("seed %d: %d lost, %d did not come", seed, lost, want)
			}
		}
		var st AudioStats
		if in.stats(&st); int(st.Lost) != lost {
			t.Errorf("seed %d: %d lost by the statistics, %d by the frames", seed, st.Lost, lost)
		}
	}
}

func TestSilenceOfTheClientIsNoLoss(t *testing.T) {
	in, _ := newTestIn(AudioConfig{})
	now := time.Now()
	in.receive(now, rtpPacketAt(1, 1))
	in.receive(now, rtpPacketAt(2, 21)) // 400 ms without a packet (DTX)
	in.receive(now, rtpPacketAt(4, 24))
	for _, want := range []struct {
		at   time.Duration
		lost int
	}{{0, 0}, {400 * time.Millisecond, 0}, {460 * time.Millisecond, 1}} {
		f, err := in.next(patient(t))
		if err != nil || f.Time != want.at || f.Lost != want.lost || f.Duration != 20*time.Millisecond {
			t.Errorf("%+v %v, want %+v", f, err, want)
		}
	}
}

func TestTimestampsUnwrap(t *testing.T) {
	in, _ := newTestIn(AudioConfig{})
	now := time.Now()
	for i := range 3 {
		b := rtpPacket(i)
		binary.BigEndian.PutUint32(b[4:], uint32(i)*960-1000)
		in.receive(now, b)
	}
	for i := range 3 {
		if f, _ := in.next(patient(t)); f.Time != time.Duration(i)*20*time.Millisecond {
			t.Errorf("frame %d at %v", i, f.Time)
		}
	}
}

func TestSlowReaderLosesTheOldest(t *testing.T) {
	in, _ := newTestIn(AudioConfig{ReceiveQueue: 3})
	for n := range 10 {
		if n != 8 {
			in.receive(time.Now(), rtpPacket(n))
		}
	}
	if got, want := ready(in), []string{"6+6", "7", "9+1"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	var st AudioStats
	if in.stats(&st); st.Overrun != 6 || st.Lost != 1 || st.Received != 9 {
		t.Errorf("%+v", st)
	}
}

func TestLevels(t *testing.T) {
	in, _ := newTestIn(AudioConfig{})
	h := rtp.Header{Version: 2, PayloadType: 111, SSRC: 7, SequenceNumber: 1}
	if err := h.SetExtension(1, []byte{0x80 | 42}); err != nil {
		t.Fatal(err)
	}
	in.receive(time.Now(), marshal(h, []byte{0x78, 1, 2, 3, 4}))
	in.receive(time.Now(), rtpPacket(2))
	if f, _ := in.next(patient(t)); f.Level != 42 || !f.Voice || !f.HasLevel {
		t.Errorf("%+v", f)
	}
	if f, _ := in.next(patient(t)); f.HasLevel {
		t.Errorf("%+v", f)
	}
}

func TestWhatIsNotOpusKeepsItsPlace(t *testing.T) {
	for name, packet := range map[string][]byte{
		"padding":         marshal(rtp.Header{Version: 2, PayloadType: 111, SSRC: 7, SequenceNumber: 2}, nil),
		"telephone event": marshal(rtp.Header{Version: 2, PayloadType: 126, SSRC: 7, SequenceNumber: 2}, []byte{1, 2, 3, 4}),
		"no Opus":         marshal(rtp.Header{Version: 2, PayloadType: 111, SSRC: 7, SequenceNumber: 2}, []byte{3}),
	} {
		in, _ := newTestIn(AudioConfig{})
		in.receive(time.Now(), rtpPacket(1))
		in.receive(time.Now(), packet)
		in.receive(time.Now(), []byte("no RTP"))
		in.receive(time.Now(), rtpPacket(3))
		if got, want := ready(in), []string{"1", "3"}; !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
		var st AudioStats
		if in.stats(&st); st.Ignored != 2 || st.Lost != 0 {
			t.Errorf("%s: %+v", name, st)
		}
	}
}

func TestEndOfTheTrackAndOfTheSession(t *testing.T) {
	over := errors.New("over")
	in, stop := newTestIn(AudioConfig{JitterBuffer: time.Second})
	in.receive(time.Now(), rtpPacket(1))
	in.receive(time.Now(), rtpPacket(3))
	in.finish()
	in.begin(8, 111, 0)
	in.receive(time.Now(), rtpPacket(100))
	in.receive(time.Now(), rtpPacket(102))
	stop(over)
	for _, want := range []string{"1", "3+1", "EOF", "100", "102+1", "over", "over"} {
		f, err := in.next(patient(t))
		text := fmt.Sprint(err)
		if err == nil {
			text = got(f)
		}
		if text != want {
			t.Errorf("got %s, want %s", text, want)
		}
	}
}

func TestNextEndsWithItsContext(t *testing.T) {
	in, _ := newTestIn(AudioConfig{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := in.next(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestReceivingDoesNotAllocate(t *testing.T) {
	race.NoAllocs(t)
	for name, hold := range map[string]time.Duration{"at once": 0, "with a jitter buffer": 100 * time.Millisecond} {
		in, _ := newTestIn(AudioConfig{JitterBuffer: hold})
		h := rtp.Header{Version: 2, PayloadType: 111, SSRC: 7}
		if err := h.SetExtension(1, []byte{42}); err != nil {
			t.Fatal(err)
		}
		b := marshal(h, make([]byte, 100))
		b[len(b)-100] = 0x78
		now, n := time.Now(), uint16(0)
		put := func(seq uint16) {
			binary.BigEndian.PutUint16(b[2:], seq)
			binary.BigEndian.PutUint32(b[4:], uint32(seq)*960)
			in.receive(now, b)
		}
		allocs := testing.AllocsPerRun(1000, func() {
			put(n)
			put(n + 2)
			put(n + 1)
			put(n + 3)
			n += 4
			for {
				in.mu.Lock()
				more := in.queue.len()
				in.mu.Unlock()
				if more == 0 {
					break
				}
				if _, err := in.next(context.Background()); err != nil {
					t.Error(err)
				}
			}
		})
		if allocs != 0 {
			t.Errorf("%s: %v allocations for four frames", name, allocs)
		}
	}
}

// FuzzAudioIn feeds arbitrary packets: nothing panics, and what comes out is
// in order.
func FuzzAudioIn(f *testing.F) {
	f.Add([]byte{0, 1, 2, 1, 5, 4, 3, 200}, uint8(0))
	f.Add([]byte{9, 1, 2, 1, 5, 4, 3, 250, 250, 1}, uint8(60))
	f.Fuzz(func(t *testing.T, steps []byte, hold uint8) {
		in, _ := newTestIn(AudioConfig{JitterBuffer: time.Duration(hold) * time.Millisecond, ReceiveQueue: 1000})
		now, seq := time.Now(), 30000
		for _, s := range steps {
			switch {
			case s >= 250:
				seq += 1000 * int(s-249)
			case s >= 240:
				now = now.Add(time.Duration(s-239) * 20 * time.Millisecond)
			default:
				seq += int(int8(s)) % 8
			}
			in.receive(now, rtpPacketAt(seq&0xffff, int64(seq)))
		}
		in.finish()
		held := in.track.held
		last, first := time.Duration(0), true
		for {
			fr, err := in.next(patient(t))
			if err == io.EOF {
				break
			}
			if !first && fr.Time == last || fr.Lost < 0 {
				t.Fatalf("%v after %v with %d lost", fr.Time, last, fr.Lost)
			}
			last, first = fr.Time, false
		}
		if held != 0 {
			t.Fatalf("%d packets are still held", held)
		}
	})
}
