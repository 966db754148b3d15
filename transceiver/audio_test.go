package transceiver

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pion/interceptor"
	"github.com/pion/interceptor/pkg/report"
	"github.com/pion/rtp"
	"github.com/pion/webrtc/v4"

	"github.com/usher-rtc/usher/internal/opus"
	"github.com/usher-rtc/usher/internal/race"
	"github.com/usher-rtc/usher/internal/stun"
	"github.com/usher-rtc/usher/internal/trunk"
)

// speaker is a client with a microphone that a test drives, and a loudspeaker.
type speaker struct {
	*client
	mic   *webrtc.TrackLocalStaticRTP
	heard chan rtp.Packet
}

// newSpeaker makes a client that has what browsers have: audio levels and
// reports, though ten times a second.
func newSpeaker(t testing.TB) *speaker {
	t.Helper()
	m := &webrtc.MediaEngine{}
	if err := m.RegisterDefaultCodecs(); err != nil {
		t.Fatal(err)
	}
	if err := m.RegisterHeaderExtension(webrtc.RTPHeaderExtensionCapability{URI: audioLevelURI}, webrtc.RTPCodecTypeAudio); err != nil {
		t.Fatal(err)
	}
	registry := &interceptor.Registry{}
	receiver, err := report.NewReceiverInterceptor(report.ReceiverInterval(100 * time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	sender, err := report.NewSenderInterceptor(report.SenderInterval(100 * time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	registry.Add(receiver)
	registry.Add(sender)
	se := webrtc.SettingEngine{LoggerFactory: nullLoggers{}}
	se.SetNetworkTypes([]webrtc.NetworkType{webrtc.NetworkTypeUDP4})
	se.SetIncludeLoopbackCandidate(true)
	calm(&se)
	se.SetIPFilter(func(ip net.IP) bool { return ip.IsLoopback() })
	pc, err := webrtc.NewAPI(webrtc.WithSettingEngine(se), webrtc.WithMediaEngine(m), webrtc.WithInterceptorRegistry(registry)).
		NewPeerConnection(webrtc.Configuration{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pc.GracefulClose() })
	sp := &speaker{client: &client{t: t, pc: pc}, heard: make(chan rtp.Packet, 10000)}
	sp.mic, err = webrtc.NewTrackLocalStaticRTP(webrtc.RTPCodecCapability{MimeType: webrtc.MimeTypeOpus}, "audio", "mic")
	if err != nil {
		t.Fatal(err)
	}
	out, err := pc.AddTrack(sp.mic)
	if err != nil {
		t.Fatal(err)
	}
	go drain(out.Read)
	pc.OnTrack(func(track *webrtc.TrackRemote, r *webrtc.RTPReceiver) {
		go drain(r.Read)
		for {
			p, _, err := track.ReadRTP()
			if err != nil {
				return
			}
			sp.heard <- *p
		}
	})
	return sp
}

// drain reads RTCP, without which Pion's interceptors do not see it.
func drain(read func([]byte) (int, interceptor.Attributes, error)) {
	for buf := make([]byte, 1500); ; {
		if _, _, err := read(buf); err != nil {
			return
		}
	}
}

// say sends packet n of a stream of 20 ms frames.
func (sp *speaker) say(n int) {
	payload := []byte{0x78, 0, 0, 0, 0}
	binary.BigEndian.PutUint32(payload[1:], uint32(n))
	h := rtp.Header{Version: 2, SequenceNumber: uint16(n), Timestamp: uint32(n) * 960}
	_ = h.SetExtension(1, []byte{byte(n % 128)})
	_ = sp.mic.WriteRTP(&rtp.Packet{Header: h, Payload: payload})
}

// begin says packet 1 until a has it: what a client writes before its own side
// of the handshake is done goes nowhere, and the Host may be done first.
func (sp *speaker) begin(a *Audio) {
	sp.t.Helper()
	eventually(sp.t, "the first frame", func() bool {
		sp.say(1)
		ctx, cancel := context.WithTimeout(sp.t.Context(), 20*time.Millisecond)
		defer cancel()
		f, err := a.Next(ctx)
		if err != nil && !errors.Is(err, context.DeadlineExceeded) || err == nil && got(f) != "1" {
			sp.t.Fatal(f, err)
		}
		return err == nil
	})
}

// talk says one packet after the other, 20 ms apart, until the test ends.
func (sp *speaker) talk() {
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for n := 1; ; n++ {
			select {
			case <-stop:
				return
			case <-tick.C:
				sp.say(n)
			}
		}
	}()
	sp.t.Cleanup(func() {
		close(stop)
		<-stopped
	})
}

// hear returns the next packet that is no silence.
func (sp *speaker) hear() rtp.Packet {
	sp.t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case p := <-sp.heard:
			if string(p.Payload) != string(opus.Silence()) {
				return p
			}
		case <-timeout:
			sp.t.Fatal("timed out waiting for audio")
		}
	}
}

// audioCall makes a call whose session has audio.
func audioCall(t testing.TB, host *Host, cfg AudioConfig) (*speaker, *Session, *Audio) {
	t.Helper()
	sp := newSpeaker(t)
	var a *Audio
	s := sp.call(host, AcceptOptions{Prepare: func(s *Session) (err error) {
		a, err = s.OpenAudio(cfg)
		return err
	}})
	return sp, s, a
}

func TestAudioEcho(t *testing.T) {
	host, _ := setup(t, nil)
	sp, s, a := audioCall(t, host, AudioConfig{})
	s.Go(func(ctx context.Context) {
		for f, err := range a.Frames(ctx) {
			if err != nil || a.Write(ctx, f.Payload) != nil {
				return
			}
		}
	})
	sp.talk()
	last := uint32(0)
	for range 20 {
		p := sp.hear()
		n := binary.BigEndian.Uint32(p.Payload[1:])
		if last != 0 && n != last+1 {
			t.Errorf("%d follows %d", n, last)
		}
		last = n
	}
	if st := a.Stats(); st.Received < 20 || st.Sent < 20 || st.Ignored != 0 || st.Played < 400*time.Millisecond {
		t.Errorf("%+v", st)
	}
}

func TestFramesTellLevelAndTime(t *testing.T) {
	host, _ := setup(t, nil)
	sp := newSpeaker(t)
	var a *Audio
	s, answer, err := host.Accept(patient(t), sp.offer(nil), AcceptOptions{Prepare: func(s *Session) (err error) {
		a, err = s.OpenAudio(AudioConfig{})
		return err
	}})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(answer, "a=extmap:1 "+audioLevelURI+"\r\n") {
		t.Errorf("audio levels are not in the answer:\n%s", answer)
	}
	sp.answer(answer)
	wait(t, "DTLS", s.Connected())
	sp.talk()
	var first uint32
	for i := range 10 {
		f, err := a.Next(patient(t))
		if err != nil {
			t.Fatal(err)
		}
		n := binary.BigEndian.Uint32(f.Payload[1:])
		if i == 0 {
			first = n
		}
		if !f.HasLevel || f.Level != uint8(n%128) || f.Voice || f.Duration != 20*time.Millisecond {
			t.Errorf("packet %d: %+v", n, f)
		}
		if want := time.Duration(n-first) * 20 * time.Millisecond; f.Time != want {
			t.Errorf("packet %d at %v, want %v", n, f.Time, want)
		}
	}
}

func TestAudioStaysInOrderOverABadNetwork(t *testing.T) {
	host, relay := setup(t, nil)
	sp, _, a := audioCall(t, host, AudioConfig{JitterBuffer: 500 * time.Millisecond, ReceiveQueue: 1000})
	sp.begin(a)
	var came, dropped atomic.Uint64
	drop := func(b []byte) bool {
		if stun.Classify(b) != stun.ClassRTP {
			return false
		}
		defer came.Add(1)
		if rand.IntN(10) == 0 {
			dropped.Add(1)
			return true
		}
		return false
	}
	relay.dropIn.Store(&drop)
	order := make([]int, 200)
	for i := range order {
		order[i] = i + 2
	}
	for i := 0; i+4 <= len(order); i += 4 {
		rand.Shuffle(4, func(a, b int) { order[i+a], order[i+b] = order[i+b], order[i+a] })
	}
	for i, n := range order {
		sp.say(n)
		sp.say(n)     // the second one is refused by SRTP
		if i%8 == 7 { // no buffer on the way overflows, or what is lost there is lost to the count
			eventually(t, "the packets at the relay", func() bool { return came.Load() >= 2*uint64(i+1) })
		}
	}
	relay.dropIn.Store(nil)
	sp.say(202)
	next, lost, last := uint32(2), 0, 202
	for next < 203 {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		f, err := a.Next(ctx)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) && last < 250 {
			last++ // the last one found the queue full, too
			sp.say(last)
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		n := binary.BigEndian.Uint32(f.Payload[1:])
		if n < next || f.Lost != int(n-next) {
			t.Fatalf("packet %d with %d lost before it, the next was %d", n, f.Lost, next)
		}
		next, lost = n+1, lost+f.Lost
	}
	if st := a.Stats(); st.Lost != uint64(lost) || st.Received == 0 {
		t.Errorf("%d lost: %+v", lost, st)
	}
	full := host.Stats().Drops[DropQueueFull]
	if dropped.Load() == 0 || lost > int(dropped.Load()+full) {
		t.Errorf("%d dropped on the way, %d at a full queue, %d lost", dropped.Load(), full, lost)
	}
}

func TestInterruptHoldsOverTheNetwork(t *testing.T) {
	host, _ := setup(t, nil)
	sp, s, a := audioCall(t, host, AudioConfig{})
	wait(t, "DTLS", s.Connected())
	for n := range 200 {
		if err := a.Write(patient(t), frame(byte(n))); err != nil {
			t.Fatal(err)
		}
	}
	for range 10 {
		sp.hear()
	}
	cut := a.Interrupt()
	at := time.Now()
	if cut.Played < 200*time.Millisecond || cut.Played+cut.Dropped != 4*time.Second {
		t.Errorf("%+v", cut)
	}
	// The next utterance follows what was sent before, and nothing else does.
	for range 3 {
		if err := a.Write(patient(t), frame(250)); err != nil {
			t.Fatal(err)
		}
	}
	left := int(cut.Played/(20*time.Millisecond)) - 10
	for {
		p := sp.hear()
		if p.Payload[3] == 250 {
			break
		}
		if left--; left < 0 {
			t.Fatalf("frame %d was sent after the interruption", p.Payload[3])
		}
	}
	if late := time.Since(at); late >= cut.Dropped {
		t.Errorf("the next utterance began %v after the interruption, as if %v had not been dropped", late, cut.Dropped)
	}
}

func TestAudioStatistics(t *testing.T) {
	host, relay := setup(t, nil)
	sp, s, a := audioCall(t, host, AudioConfig{})
	wait(t, "DTLS", s.Connected())
	// Every fifth packet to the client is lost.
	var n atomic.Uint32
	drop := func(f *trunk.Frame) bool {
		return stun.Classify(f.Payload) == stun.ClassRTP && f.Payload[1]&0x7f != 72 && n.Add(1)%5 == 0
	}
	relay.dropOut.Store(&drop)
	sp.talk()
	s.Go(func(ctx context.Context) {
		for f, err := range a.Frames(ctx) {
			if err != nil || a.Write(ctx, f.Payload) != nil {
				return
			}
		}
	})
	eventually(t, "the client's reports", func() bool {
		st := a.Stats()
		return st.RoundTrip > 0 && st.LostOut > 2 && st.JitterOut > 0 && st.JitterIn > 0
	})
	st := a.Stats()
	const most = 10 * time.Second // wrong units would make it more, a busy machine does not
	if st.RoundTrip > most || st.JitterIn > most || st.JitterOut > most || st.LostOut > st.Sent {
		t.Errorf("%+v", st)
	}
}

func TestPacedFramesShareDatagrams(t *testing.T) {
	host, _ := setup(t, func(c *Config) { c.Sockets = 1 })
	const calls, frames = 8, 50
	var audios []*Audio
	for range calls {
		_, s, a := audioCall(t, host, AudioConfig{})
		wait(t, "DTLS", s.Connected())
		audios = append(audios, a)
	}
	before := host.Stats()
	for _, a := range audios {
		for n := range frames {
			if err := a.Write(patient(t), frame(byte(n))); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, a := range audios {
		if err := a.Wait(patient(t)); err != nil {
			t.Fatal(err)
		}
	}
	after := host.Stats()
	sent, datagrams := after.FramesOut-before.FramesOut, after.DatagramsOut-before.DatagramsOut
	if sent < calls*frames || datagrams > sent/2 {
		t.Errorf("%d frames left in %d datagrams", sent, datagrams)
	}
}

func TestReaderThatStopsSlowsNobodyElse(t *testing.T) {
	host, _ := setup(t, nil)
	stuck, _, stuckAudio := audioCall(t, host, AudioConfig{ReceiveQueue: 5})
	stuck.talk() // nobody calls Next
	sp, s, a := audioCall(t, host, AudioConfig{})
	s.Go(func(ctx context.Context) {
		for f, err := range a.Frames(ctx) {
			if err != nil || a.Write(ctx, f.Payload) != nil {
				return
			}
		}
	})
	sp.talk()
	eventually(t, "the slow one to lose something", func() bool { return stuckAudio.Stats().Overrun > 20 })
	before := a.Stats().Received
	for range 50 {
		sp.hear()
	}
	if st := a.Stats(); st.Lost+st.Overrun != 0 || st.Received == before {
		t.Errorf("%+v", st)
	}
	if st := stuckAudio.Stats(); st.QueuedIn != 5 {
		t.Errorf("%+v", st)
	}
}

func TestTrackEndsAndAnotherBegins(t *testing.T) {
	host, _ := setup(t, nil)
	sp, s, a := audioCall(t, host, AudioConfig{})
	others := make(chan string, 10)
	s.OnTrack(func(track *webrtc.TrackRemote, _ *webrtc.RTPReceiver) { others <- track.Codec().MimeType })
	sp.begin(a)
	// A second track goes to OnTrack while the first one lasts.
	second, err := webrtc.NewTrackLocalStaticRTP(webrtc.RTPCodecCapability{MimeType: webrtc.MimeTypeOpus}, "audio", "second")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sp.pc.AddTrack(second); err != nil {
		t.Fatal(err)
	}
	answer, err := s.Renegotiate(patient(t), sp.offer(nil))
	if err != nil {
		t.Fatal(err)
	}
	sp.answer(answer)
	eventually(t, "the second track", func() bool {
		_ = second.WriteRTP(&rtp.Packet{Header: rtp.Header{Version: 2}, Payload: frame(1)})
		return len(others) > 0
	})
	if mime := <-others; mime != webrtc.MimeTypeOpus {
		t.Error(mime)
	}
	// The first one is taken away: io.EOF.
	if err := sp.pc.RemoveTrack(sp.pc.GetSenders()[0]); err != nil {
		t.Fatal(err)
	}
	if answer, err = s.Renegotiate(patient(t), sp.offer(nil)); err != nil {
		t.Fatal(err)
	}
	sp.answer(answer)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if f, err := a.Next(ctx); err != io.EOF {
		t.Fatal(f, err)
	}
}

func TestOpenAudioRefuses(t *testing.T) {
	host, _ := setup(t, nil)
	t.Run("twice", func(t *testing.T) {
		sp := newSpeaker(t)
		sp.call(host, AcceptOptions{Prepare: func(s *Session) error {
			if _, err := s.OpenAudio(AudioConfig{}); err != nil {
				return err
			}
			if _, err := s.OpenAudio(AudioConfig{}); !errors.Is(err, ErrOpen) {
				t.Errorf("got %v", err)
			}
			return nil
		}})
	})
	t.Run("too late", func(t *testing.T) {
		s := newSpeaker(t).call(host, AcceptOptions{})
		if _, err := s.OpenAudio(AudioConfig{}); !errors.Is(err, ErrAnswered) {
			t.Errorf("got %v", err)
		}
		if _, err := s.OpenEvents(EventsConfig{}); !errors.Is(err, ErrAnswered) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("no audio", func(t *testing.T) {
		c := newClient(t, nil)
		c.channel()
		c.call(host, AcceptOptions{Prepare: func(s *Session) error {
			if _, err := s.OpenAudio(AudioConfig{}); !errors.Is(err, ErrNoOpus) {
				t.Errorf("got %v", err)
			}
			return nil
		}})
	})
	t.Run("a client that only sends", func(t *testing.T) {
		c := newClient(t, nil)
		_, err := c.pc.AddTransceiverFromKind(webrtc.RTPCodecTypeAudio, webrtc.RTPTransceiverInit{
			Direction: webrtc.RTPTransceiverDirectionSendonly,
		})
		if err != nil {
			t.Fatal(err)
		}
		c.call(host, AcceptOptions{Prepare: func(s *Session) error {
			a, err := s.OpenAudio(AudioConfig{})
			if err != nil {
				return err
			}
			if err := a.Write(patient(t), frame(1)); !errors.Is(err, ErrNotListening) {
				t.Errorf("got %v", err)
			}
			return nil
		}})
	})
	t.Run("a bad configuration", func(t *testing.T) {
		for field, cfg := range map[string]AudioConfig{
			"JitterBuffer": {JitterBuffer: 2 * time.Second}, "ReceiveQueue": {ReceiveQueue: -1}, "SendQueue": {SendQueue: time.Hour},
		} {
			var bad *ConfigError
			if _, err := (&Session{}).OpenAudio(cfg); !errors.As(err, &bad) || bad.Field != field {
				t.Errorf("%s: %v", field, err)
			}
		}
	})
}

func TestClientThatOnlyListens(t *testing.T) {
	host, _ := setup(t, nil)
	c := newClient(t, nil)
	if _, err := c.pc.AddTransceiverFromKind(webrtc.RTPCodecTypeAudio, webrtc.RTPTransceiverInit{
		Direction: webrtc.RTPTransceiverDirectionRecvonly,
	}); err != nil {
		t.Fatal(err)
	}
	heard := make(chan byte, 100)
	c.pc.OnTrack(func(track *webrtc.TrackRemote, _ *webrtc.RTPReceiver) {
		for {
			p, _, err := track.ReadRTP()
			if err != nil {
				return
			}
			heard <- p.Payload[len(p.Payload)-1]
		}
	})
	c.call(host, AcceptOptions{Prepare: func(s *Session) error {
		a, err := s.OpenAudio(AudioConfig{Comfort: -1})
		if err != nil {
			return err
		}
		for n := range byte(10) {
			if err := a.Write(patient(t), frame(n)); err != nil {
				return err
			}
		}
		return nil
	}})
	// What was written before the answer was made is heard from its beginning.
	for n := range byte(10) {
		select {
		case b := <-heard:
			if b != n {
				t.Errorf("heard %d, want %d", b, n)
			}
		case <-time.After(patience):
			t.Fatalf("frame %d was not heard", n)
		}
	}
}

func TestAudioEndsWithTheSession(t *testing.T) {
	host, _ := setup(t, nil)
	_, s, a := audioCall(t, host, AudioConfig{SendQueue: 100 * time.Millisecond})
	errs := make(chan error, 3)
	var started sync.WaitGroup
	started.Add(3)
	go func() { started.Done(); _, err := a.Next(context.Background()); errs <- err }()
	go func() {
		started.Done()
		for {
			if err := a.Write(context.Background(), frame(1)); err != nil {
				errs <- err
				return
			}
		}
	}()
	go func() {
		started.Done()
		_ = a.Write(context.Background(), frame(1))
		for a.Wait(context.Background()) == nil {
			runtime.Gosched()
		}
		errs <- a.Wait(context.Background())
	}()
	started.Wait()
	_ = s.Close()
	for range 3 {
		select {
		case err := <-errs:
			if !errors.Is(err, ErrSessionClosed) {
				t.Errorf("got %v", err)
			}
		case <-time.After(patience):
			t.Fatal("something did not end with the session")
		}
	}
	wait(t, "the end", s.Done())
}

// TestGoroutinesOfASession holds the line on what a session costs.
func TestGoroutinesOfASession(t *testing.T) {
	if race.Enabled {
		t.Skip("goroutines are counted without -race, in the build that users run")
	}
	const calls = 5
	for name, c := range map[string]struct {
		prepare func(*Session) error
		detach  bool
		most    int
	}{
		"without audio and events": {func(s *Session) error {
			s.OnDataChannel(func(*webrtc.DataChannel) {})
			return nil
		}, false, 18},
		"with both": {func(s *Session) error {
			if _, err := s.OpenAudio(AudioConfig{}); err != nil {
				return err
			}
			_, err := s.OpenEvents(EventsConfig{})
			return err
		}, false, 20},
		"with both, detached": {func(s *Session) error {
			if _, err := s.OpenAudio(AudioConfig{}); err != nil {
				return err
			}
			_, err := s.OpenEvents(EventsConfig{})
			return err
		}, true, 20},
	} {
		t.Run(name, func(t *testing.T) {
			host, _ := setup(t, func(cfg *Config) { cfg.DetachDataChannels = c.detach })
			for range calls {
				sp := newSpeaker(t)
				ch := sp.channel()
				offer := sp.offer(nil)
				var s *Session
				var answer string
				var err error
				pprof.Do(t.Context(), pprof.Labels("session", "yes"), func(ctx context.Context) {
					s, answer, err = host.Accept(ctx, offer, AcceptOptions{Prepare: c.prepare})
				})
				if err != nil {
					t.Fatal(err)
				}
				sp.answer(answer)
				wait(t, "DTLS", s.Connected())
				wait(t, "the data channel", ch.open)
				for n := range 3 {
					sp.say(n)
				}
			}
			// A few end in a moment: those that started the transports.
			n, rounds := 0, 0
			eventually(t, "the goroutines to settle", func() bool {
				n = sessionGoroutines(t)
				rounds++
				return rounds > 100 && n <= c.most*calls
			})
			if n < 10*calls {
				t.Errorf("%d goroutines in %d sessions: they are not counted", n, calls)
			}
			t.Logf("%.1f goroutines a session", float64(n)/calls)
		})
	}
}

// sessionGoroutines counts the goroutines that descend from an Accept: labels
// are inherited, and the clients in this process have none.
func sessionGoroutines(t *testing.T) (n int) {
	t.Helper()
	var out strings.Builder
	if err := pprof.Lookup("goroutine").WriteTo(&out, 1); err != nil {
		t.Fatal(err)
	}
	same := 0
	for line := range strings.Lines(out.String()) {
		if _, err := fmt.Sscanf(line, "%d @ ", &same); err == nil {
			continue
		}
		if strings.HasPrefix(line, "# labels:") && strings.Contains(line, `"session":"yes"`) {
			n += same
		}
	}
	return n
}
