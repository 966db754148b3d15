package transceiver

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pion/rtp"

	"github.com/usher-rtc/usher/internal/opus"
	"github.com/usher-rtc/usher/internal/race"
)

// sentPacket is what a recorder saw.
type sentPacket struct {
	at      time.Duration // since the recorder was made
	header  rtp.Header
	payload string
}

// recorder is an rtpWriter that remembers, and the holder of a pacer.
type recorder struct {
	began time.Time

	mu      sync.Mutex
	down    bool // there is no SRTP
	packets []sentPacket
	holds   int
	held    bool
	flushes int
}

func (r *recorder) WriteRTP(h *rtp.Header, payload []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down {
		return 0, nil
	}
	r.packets = append(r.packets, sentPacket{time.Since(r.began), *h, string(payload)})
	return len(payload), nil
}

func (r *recorder) hold() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.holds, r.held = r.holds+1, true
	return true
}

func (r *recorder) flush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.flushes++
}

func (r *recorder) release(bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held = false
}

// rounds returns how often the pacer has served, and how often it sent in between.
func (r *recorder) rounds() (holds, flushes int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.holds, r.flushes
}

func (r *recorder) take() []sentPacket {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.packets
	r.packets = nil
	return p
}

// frame makes a 20 ms Opus packet that can be told from others.
func frame(n byte) []byte { return []byte{0x78, 1, 2, n} }

// speech keeps the packets that are no silence.
func speech(p []sentPacket) (out []sentPacket) {
	for _, s := range p {
		if s.payload != string(opus.Silence()) {
			out = append(out, s)
		}
	}
	return out
}

// paceTest runs f in a bubble of its own time with a pacer.
func paceTest(t *testing.T, f func(t *testing.T, p *pacer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		p := newPacer(time.Now(), &recorder{began: time.Now()})
		var wg sync.WaitGroup
		wg.Go(func() { p.run(stop) })
		f(t, p)
		close(stop)
		wg.Wait()
	})
}

// newTestOut makes a queue that is ready to send.
func newTestOut(p *pacer, cfg AudioConfig) (*audioOut, *recorder, func(error)) {
	if err := cfg.validate(); err != nil {
		panic(err)
	}
	r := &recorder{began: time.Now()}
	stop := make(chan struct{})
	var cause error
	o := &audioOut{
		pacer: p, limit: cfg.SendQueue, comfort: cfg.Comfort, stop: stop, stopErr: func() error { return cause },
		up: func() bool { return true }, sentNow: func(time.Time) {},
	}
	o.init()
	o.bind(r, 1, 111)
	return o, r, func(err error) {
		cause = err
		close(stop)
	}
}

func writeAll(t *testing.T, o *audioOut, first, n byte) {
	t.Helper()
	for i := range n {
		if err := o.write(patient(t), frame(first+i)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFramesAreSentOneAtATime(t *testing.T) {
	paceTest(t, func(t *testing.T, p *pacer) {
		o, r, _ := newTestOut(p, AudioConfig{Comfort: -1})
		writeAll(t, o, 0, 50)
		if got := r.take(); len(got) != 1 || got[0].at != 0 || !got[0].header.Marker {
			t.Fatalf("the first frame did not leave at once with a marker: %+v", got)
		}
		if err := o.wait(patient(t)); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(r.began); d < 980*time.Millisecond || d > 1010*time.Millisecond {
			t.Errorf("1 s of audio took %v", d)
		}
		for i, s := range r.take() {
			due := time.Duration(i+1) * 20 * time.Millisecond
			// The end of the queue is sent a little faster, as if it were live.
			if s.at < due-paceLead-slewBelow/slewPart || s.at > due {
				t.Errorf("frame %d left at %v, it was due at %v", i+1, s.at, due)
			}
			if s.payload[3] != byte(i+1) || s.header.Marker {
				t.Errorf("frame %d: %+v", i+1, s)
			}
		}
	})
}

func TestSequenceAndTimeGoTogether(t *testing.T) {
	for name, c := range map[string]struct {
		packet []byte
		ticks  uint32
	}{
		"2.5 ms": {[]byte{16 << 3, 0, 0}, 120},
		"10 ms":  {[]byte{30 << 3, 0, 0}, 480},
		"20 ms":  {frame(0), 960},
		"60 ms":  {[]byte{3 << 3, 0, 0}, 2880},
		"120 ms": {[]byte{3<<3 | 1, 0, 0}, 5760},
	} {
		t.Run(name, func(t *testing.T) {
			paceTest(t, func(t *testing.T, p *pacer) {
				o, r, _ := newTestOut(p, AudioConfig{})
				for range 20 {
					if err := o.write(patient(t), c.packet); err != nil {
						t.Fatal(err)
					}
				}
				if err := o.wait(patient(t)); err != nil {
					t.Fatal(err)
				}
				got := speech(r.take())
				if len(got) != 20 {
					t.Fatalf("%d of 20 packets were sent", len(got))
				}
				for i := 1; i < len(got); i++ {
					if d := got[i].header.SequenceNumber - got[i-1].header.SequenceNumber; d != 1 {
						t.Errorf("packet %d: a step of %d in the sequence", i, d)
					}
					if d := got[i].header.Timestamp - got[i-1].header.Timestamp; d != c.ticks {
						t.Errorf("packet %d: a step of %d ticks", i, d)
					}
				}
				if all := time.Duration(20) * opus.Time(int64(c.ticks)); got[19].at > all {
					t.Errorf("the last of %v left after %v", all, got[19].at)
				}
			})
		})
	}
}

func TestLiveSourceIsNotDelayed(t *testing.T) {
	// The source's clock is off by a hundredth, every frame comes up to 4 ms
	// late, and it begins with a burst.
	for name, period := range map[string]time.Duration{
		"in step": 20 * time.Millisecond, "fast": 19800 * time.Microsecond, "slow": 20200 * time.Microsecond,
	} {
		t.Run(name, func(t *testing.T) {
			paceTest(t, func(t *testing.T, p *pacer) {
				o, r, _ := newTestOut(p, AudioConfig{})
				const frames, burst = 1000, 5
				writeAll(t, o, 0, burst)
				for i := range frames {
					jitter := time.Duration(i*i%5) * time.Millisecond
					time.Sleep(time.Until(r.began.Add(time.Duration(i)*period + jitter)))
					writeAll(t, o, byte(i), 1)
				}
				time.Sleep(30 * time.Millisecond)
				got := r.take()
				if len(got) != frames+burst {
					t.Fatalf("%d of %d packets, %d of them silence", len(got), frames+burst, o.comforts)
				}
				late, jumps := time.Duration(0), 0
				for i, s := range got {
					if n := i - burst; n > 300 { // 6 s to get over the burst
						late = max(late, s.at-time.Duration(n)*period-time.Duration(n*n%5)*time.Millisecond)
					}
					if i > 0 && s.header.Timestamp-got[i-1].header.Timestamp != 960 {
						jumps++
					}
				}
				if late > 10*time.Millisecond {
					t.Errorf("a frame was delayed by %v", late)
				}
				if jumps != 0 {
					t.Errorf("the timestamp jumped %d times", jumps)
				}
			})
		})
	}
}

func TestSilenceIsInTheTimestamps(t *testing.T) {
	paceTest(t, func(t *testing.T, p *pacer) {
		o, r, _ := newTestOut(p, AudioConfig{Comfort: -1})
		writeAll(t, o, 0, 1)
		time.Sleep(3 * time.Second)
		writeAll(t, o, 1, 1)
		got := r.take()
		if len(got) != 2 {
			t.Fatalf("%d packets", len(got))
		}
		if !got[1].header.Marker {
			t.Error("no marker after the silence")
		}
		if d := got[1].header.SequenceNumber - got[0].header.SequenceNumber; d != 1 {
			t.Errorf("a step of %d in the sequence", d)
		}
		if d := got[1].header.Timestamp - got[0].header.Timestamp; d != 3*opus.Rate {
			t.Errorf("3 s of silence are %d ticks", d)
		}
	})
}

func TestComfortFillsAStall(t *testing.T) {
	paceTest(t, func(t *testing.T, p *pacer) {
		o, r, _ := newTestOut(p, AudioConfig{Comfort: 60 * time.Millisecond})
		writeAll(t, o, 0, 1)
		time.Sleep(time.Second)
		writeAll(t, o, 1, 1)
		got := r.take()
		if len(got) != 5 || len(speech(got)) != 2 {
			t.Fatalf("%+v", got)
		}
		began := got[0].header.Timestamp
		for i, s := range got[1:4] {
			if want := 20*time.Millisecond + stallAfter + time.Duration(i)*opus.SilenceDuration; s.at > want || s.at < want-2*paceLead {
				t.Errorf("silence %d at %v, want %v", i, s.at, want)
			}
			if s.header.Marker {
				t.Error("a marker on silence")
			}
			if s.header.SequenceNumber != got[i].header.SequenceNumber+1 {
				t.Error("silence is out of sequence")
			}
		}
		if d := got[4].header.Timestamp - began; d != opus.Rate || !got[4].header.Marker {
			t.Errorf("the next frame is %d ticks later, marker %v", d, got[4].header.Marker)
		}
		var st AudioStats
		o.stats(&st)
		if st.Comfort != 3 || st.Sent != 5 || st.Played != 40*time.Millisecond {
			t.Errorf("%+v", st)
		}
	})
}

func TestInterrupt(t *testing.T) {
	paceTest(t, func(t *testing.T, p *pacer) {
		o, r, _ := newTestOut(p, AudioConfig{})
		writeAll(t, o, 0, 100)
		time.Sleep(205 * time.Millisecond)
		cut := o.interrupt()
		if cut.Played+cut.Dropped != 2*time.Second || cut.Played < 200*time.Millisecond || cut.Played > 240*time.Millisecond {
			t.Errorf("%+v", cut)
		}
		before := speech(r.take())
		if got := time.Duration(len(before)) * 20 * time.Millisecond; got != cut.Played {
			t.Errorf("%v were sent, %v reported", got, cut.Played)
		}
		time.Sleep(time.Second)
		after := r.take()
		if got := speech(after); len(got) != 0 {
			t.Errorf("%d dropped frames were sent", len(got))
		}
		if len(after) != 5 || after[0].at > before[len(before)-1].at+2*opus.SilenceDuration {
			t.Errorf("the silence after it: %+v", after)
		}
		if again := o.interrupt(); again != (Interrupted{}) {
			t.Errorf("a second one: %+v", again)
		}
		writeAll(t, o, 0, 2)
		time.Sleep(100 * time.Millisecond)
		if cut := o.interrupt(); cut != (Interrupted{Played: 40 * time.Millisecond}) {
			t.Errorf("the next utterance: %+v", cut)
		}
	})
}

func TestWriteBlocksWhileTheQueueIsFull(t *testing.T) {
	paceTest(t, func(t *testing.T, p *pacer) {
		o, r, _ := newTestOut(p, AudioConfig{SendQueue: 200 * time.Millisecond})
		writeAll(t, o, 0, 60)
		if d := time.Since(r.began); d < 950*time.Millisecond || d > time.Second {
			t.Errorf("1.2 s through a queue of 200 ms were written in %v", d)
		}
		var st AudioStats
		if o.stats(&st); st.QueuedOut > 200*time.Millisecond {
			t.Errorf("%v are queued", st.QueuedOut)
		}
	})
}

func TestBlockedWriteEnds(t *testing.T) {
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		end  func(o *audioOut, cancel func(), stop func(error))
		want error
	}{
		"context":     {func(_ *audioOut, cancel func(), _ func(error)) { cancel() }, context.Canceled},
		"session":     {func(_ *audioOut, _ func(), stop func(error)) { stop(broken) }, broken},
		"interrupted": {func(o *audioOut, _ func(), _ func(error)) { o.interrupt() }, ErrInterrupted},
	} {
		t.Run(name, func(t *testing.T) {
			paceTest(t, func(t *testing.T, p *pacer) {
				o, r, stop := newTestOut(p, AudioConfig{SendQueue: 100 * time.Millisecond})
				r.down = true // nothing is ever sent
				writeAll(t, o, 0, 5)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				done := make(chan error, 2)
				for range 2 {
					go func() { done <- o.write(ctx, frame(9)) }()
				}
				synctest.Wait()
				select {
				case err := <-done:
					t.Fatalf("did not block: %v", err)
				default:
				}
				c.end(o, cancel, stop)
				for range 2 {
					if err := <-done; !errors.Is(err, c.want) {
						t.Errorf("got %v, want %v", err, c.want)
					}
				}
			})
		})
	}
}

func TestMuteLetsTimePass(t *testing.T) {
	paceTest(t, func(t *testing.T, p *pacer) {
		o, r, _ := newTestOut(p, AudioConfig{Comfort: -1})
		writeAll(t, o, 0, 30)
		time.Sleep(190 * time.Millisecond)
		o.mute(true)
		n := len(r.take())
		time.Sleep(200 * time.Millisecond)
		if got := r.take(); len(got) != 0 {
			t.Errorf("%d packets while muted", len(got))
		}
		o.mute(false)
		if err := o.wait(patient(t)); err != nil {
			t.Fatal(err)
		}
		got := r.take()
		if !got[0].header.Marker || n+len(got) != 20 || got[0].payload[3] != 20 {
			t.Errorf("%d before and %d after 10 muted ones, which begin with %+v", n, len(got), got[0])
		}
		if d := time.Since(r.began); d < 590*time.Millisecond || d > 610*time.Millisecond {
			t.Errorf("600 ms took %v", d)
		}
	})
}

func TestOnlyTheFirstEmptyFrameIsSent(t *testing.T) {
	paceTest(t, func(t *testing.T, p *pacer) {
		o, r, _ := newTestOut(p, AudioConfig{})
		writeAll(t, o, 0, 2)
		for range 20 {
			if err := o.write(patient(t), []byte{0x78}); err != nil {
				t.Fatal(err)
			}
		}
		writeAll(t, o, 2, 2)
		if err := o.wait(patient(t)); err != nil {
			t.Fatal(err)
		}
		got := r.take()
		if len(got) != 5 || got[2].payload != "\x78" {
			t.Fatalf("%+v", got)
		}
		if d := got[3].header.Timestamp - got[2].header.Timestamp; d != 20*960 || !got[3].header.Marker {
			t.Errorf("after the silence: %d ticks, marker %v", d, got[3].header.Marker)
		}
	})
}

func TestFramesWaitForTheConnection(t *testing.T) {
	paceTest(t, func(t *testing.T, p *pacer) {
		o, r, _ := newTestOut(p, AudioConfig{})
		up := false
		o.up = func() bool { return up }
		r.down = true
		writeAll(t, o, 0, 3)
		time.Sleep(5 * time.Second)
		up = true
		o.kick() // the client is connected, SRTP follows a moment later
		time.Sleep(12 * time.Millisecond)
		r.mu.Lock()
		r.down = false
		r.mu.Unlock()
		if err := o.wait(patient(t)); err != nil {
			t.Fatal(err)
		}
		got := speech(r.take())
		if len(got) != 3 || got[0].payload[3] != 0 || got[0].at > 5*time.Second+20*time.Millisecond {
			t.Errorf("%+v", got)
		}
	})
}

func TestWriteRefusesWhatIsNotOpus(t *testing.T) {
	paceTest(t, func(t *testing.T, p *pacer) {
		o, r, _ := newTestOut(p, AudioConfig{})
		for name, b := range map[string][]byte{
			"empty": {}, "no frame count": {3}, "no frames": {3, 0, 1}, "150 ms": {3<<3 | 3, 5, 0}, "too long": make([]byte, 1276),
		} {
			if err := o.write(patient(t), b); !errors.Is(err, ErrFrame) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if got := r.take(); len(got) != 0 {
			t.Errorf("sent %+v", got)
		}
	})
}

func TestStreamsOfOneTickLeaveTogether(t *testing.T) {
	paceTest(t, func(t *testing.T, p *pacer) {
		out, _ := p.out.(*recorder)
		var streams []*audioOut
		var records []*recorder
		const n = 400
		for i := range n {
			o, r, _ := newTestOut(p, AudioConfig{Comfort: -1})
			streams, records = append(streams, o), append(records, r)
			time.Sleep(time.Duration(i%7) * 10 * time.Microsecond)
			writeAll(t, o, 0, 50)
		}
		for _, o := range streams {
			if err := o.wait(patient(t)); err != nil {
				t.Fatal(err)
			}
		}
		packets := 0
		for _, r := range records {
			packets += len(r.take())
		}
		if packets != n*50 {
			t.Errorf("%d of %d packets", packets, n*50)
		}
		holds, flushes := out.rounds()
		if holds > 250 {
			t.Errorf("%d rounds for 1 s", holds)
		}
		if flushes < 50 {
			t.Errorf("50 times %d packets left with %d intermediate writes", n, flushes)
		}
	})
}

// polled is a stream that only remembers.
type polled struct{ at []time.Time }

func (p *polled) poll(now time.Time) { p.at = append(p.at, now) }

func TestPacerLooksOnlySoFarAhead(t *testing.T) {
	began := time.Now()
	p := newPacer(began, &recorder{})
	far, near := &polled{}, &polled{}
	p.schedule(far, began, began.Add(time.Second))
	p.schedule(near, began, began.Add(7*time.Millisecond))
	var due []paced
	for i := range 4 * paceSlots {
		due = p.serve(began.Add(time.Duration(i)*paceTick), due[:0])
	}
	if len(near.at) != 1 || near.at[0].Sub(began) != 2*paceTick {
		t.Errorf("polled at %v", near.at)
	}
	if want := (paceSlots - 1) * paceTick; len(far.at) != 1 || far.at[0].Sub(began) != want {
		t.Errorf("polled after %v, want the farthest tick, %v", far.at[0].Sub(began), want)
	}
}

func TestHostThatWasHeldUpSendsNoBurst(t *testing.T) {
	for name, c := range map[string]struct {
		late time.Duration
		want int // frames at once, after the first
	}{"a little": {70 * time.Millisecond, 3}, "a second": {time.Second, 1}} {
		// The clock of the bubble stands still while the frames are written.
		synctest.Test(t, func(t *testing.T) {
			o, r, _ := newTestOut(newPacer(time.Now(), &recorder{}), AudioConfig{})
			writeAll(t, o, 0, 100) // no pacer runs
			first := r.take()
			now := o.due.Add(-20 * time.Millisecond).Add(c.late)
			o.poll(now)
			got := r.take()
			if len(first) != 1 || len(got) != c.want {
				t.Errorf("%s late: %d and %d frames at once, want 1 and %d", name, len(first), len(got), c.want)
			}
			for range 10 {
				now = now.Add(20 * time.Millisecond)
				o.poll(now)
			}
			got = append(append(first, got...), r.take()...)
			if n := len(got) - 1 - c.want; n != 10 {
				t.Errorf("%s late: %d frames in the next 200 ms", name, n)
			}
			for i := 1; i < len(got); i++ {
				if got[i].header.Timestamp-got[i-1].header.Timestamp != 960 {
					t.Errorf("%s late: a hole in the sound", name)
				}
			}
		})
	}
}

// TestPollsDoNotMultiply holds the wheel to a few entries a stream, whatever a
// stream does.
func TestPollsDoNotMultiply(t *testing.T) {
	paceTest(t, func(t *testing.T, p *pacer) {
		o, r, _ := newTestOut(p, AudioConfig{})
		r.down = true // every write asks for the next tick
		for i := range 200 {
			writeAll(t, o, byte(i), 1)
		}
		p.mu.Lock()
		waits := p.waits
		p.mu.Unlock()
		if waits > 1 {
			t.Errorf("%d polls are scheduled", waits)
		}
		r.mu.Lock()
		r.down = false
		r.mu.Unlock()
		for range 100 {
			time.Sleep(7 * time.Millisecond)
			writeAll(t, o, 0, 1)
			o.interrupt()
			o.mute(true)
			o.mute(false)
			p.mu.Lock()
			waits = max(waits, p.waits)
			p.mu.Unlock()
		}
		if waits > 8 {
			t.Errorf("%d polls are scheduled", waits)
		}
	})
}

func TestPacerSleepsWhileNobodySpeaks(t *testing.T) {
	paceTest(t, func(t *testing.T, p *pacer) {
		out, _ := p.out.(*recorder)
		o, _, _ := newTestOut(p, AudioConfig{})
		writeAll(t, o, 0, 1)
		time.Sleep(time.Second)
		before, _ := out.rounds()
		time.Sleep(time.Hour)
		if after, _ := out.rounds(); after != before {
			t.Errorf("%d rounds in an hour of silence", after-before)
		}
		writeAll(t, o, 0, 10)
		if err := o.wait(patient(t)); err != nil {
			t.Fatal(err)
		}
	})
}

func TestSendingDoesNotAllocate(t *testing.T) {
	race.NoAllocs(t)
	stop := make(chan struct{})
	p := newPacer(time.Now(), &recorder{})
	o, _, end := newTestOut(p, AudioConfig{SendQueue: time.Minute})
	defer end(nil)
	var sink discardRTP
	o.bind(&sink, 1, 111)
	packet := make([]byte, 100)
	packet[0] = 0x78
	now, due := time.Now(), []paced(nil)
	allocs := testing.AllocsPerRun(1000, func() {
		if o.write(context.Background(), packet) != nil {
			t.Error("write failed")
		}
		now = now.Add(20 * time.Millisecond)
		o.poll(now)
		due = p.serve(now, due[:0])
	})
	if allocs != 0 {
		t.Errorf("%v allocations a frame", allocs)
	}
	if sink.n < 900 {
		t.Errorf("only %d packets were sent", sink.n)
	}
	close(stop)
}

type discardRTP struct{ n int }

func (d *discardRTP) WriteRTP(*rtp.Header, []byte) (int, error) { d.n++; return 1, nil }

// BenchmarkPacedFrames is what a frame of one of 300 streams costs, without
// what it is written to.
func BenchmarkPacedFrames(b *testing.B) {
	const streams = 300
	p := newPacer(time.Now(), &recorder{})
	var sink discardRTP
	var outs []*audioOut
	for range streams {
		o, _, end := newTestOut(p, AudioConfig{})
		defer end(nil)
		o.bind(&sink, 1, 111)
		outs = append(outs, o)
	}
	packet := make([]byte, 100)
	packet[0] = 0x78
	now, due := time.Now(), []paced(nil)
	b.ReportAllocs()
	for b.Loop() {
		for _, o := range outs {
			if err := o.write(context.Background(), packet); err != nil {
				b.Fatal(err)
			}
		}
		for range 4 {
			now = now.Add(paceTick)
			due = p.serve(now, due[:0])
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/streams, "ns/frame")
}
