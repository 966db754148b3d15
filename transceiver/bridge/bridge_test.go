package bridge

import (
	"bytes"
	"context"
	"errors"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/usher-rtc/usher/transceiver"
)

func TestStartSaysWhoItIs(t *testing.T) {
	s := newScript(t)
	r := newRig(t, Config{Codecs: []Codec{fakeCodec(24000)}}, s.URL)
	select {
	case <-s.conns:
		t.Fatal("connected for a client that has not")
	case <-time.After(10 * time.Millisecond):
	}
	r.begin()
	_, m := s.ready(t, "")
	if m.Type != "start" || m.Session != "SESSION" || m.Client != "192.0.2.1:5000" || m.Ingress != 3 || m.Connection != 1 ||
		len(m.Token) != 26 || m.WindowMS != 30000 || m.Resume != nil || string(m.Metadata) != `{"voice":"calm"}` ||
		m.Route != (RouteInfo{1, "10.0.0.1:4000", 7}) || len(m.Codecs) != 2 || m.Codecs[0] != "opus" || m.Codecs[1] != "pcm16/24000" {
		t.Errorf("%+v", m)
	}
	if c := r.state(StateReady); c.Connection != 1 || c.Err != nil {
		t.Errorf("%+v", c)
	}
}

func TestAudioAndEventsPassBothWays(t *testing.T) {
	s := newScript(t)
	r := newRig(t, Config{}, s.URL).begin()
	service, _ := s.ready(t, "opus")

	r.audio.in <- transceiver.Frame{
		Payload: opusFrame(9), Time: 4 * time.Second, Duration: frameDuration, Lost: 2, Level: 31, Voice: true, HasLevel: true,
	}
	h, payload := service.frame()
	want := Header{Kind: KindAudio, Flags: FlagLevel | FlagVoice, Level: 31, Duration: frameDuration, Lost: 2, Time: 4 * time.Second}
	if h != want || !bytes.Equal(payload, opusFrame(9)) {
		t.Errorf("%+v % x", h, payload)
	}
	// The client's next track begins at 0, the service's time goes on.
	r.audio.in <- transceiver.Frame{}
	r.audio.hear(1)
	if h, _ := service.frame(); h.Time != 4*time.Second+2*frameDuration {
		t.Errorf("the next track is at %v", h.Time)
	}
	for _, ev := range []transceiver.Event{{Text: true, Data: []byte(`{"type":"end"}`)}, {Data: []byte{0, 1}}} {
		r.events.in <- ev
		h, payload := service.frame()
		if (h.Kind == KindEventText) != ev.Text || !bytes.Equal(payload, ev.Data) || h.Time == 0 {
			t.Errorf("%+v %q", h, payload)
		}
		service.binary(Header{Kind: h.Kind}, payload)
		if back := r.event(); back.Text != ev.Text || !bytes.Equal(back.Data, ev.Data) {
			t.Errorf("%+v", back)
		}
	}
	service.audio(0, 3)
	eventually(t, "three packets", func() bool { return len(r.audio.packets()) == 3 })
	if got := r.audio.packets()[2]; !bytes.Equal(got, opusFrame(2)) {
		t.Errorf("% x", got)
	}
	eventually(t, "all to be counted", func() bool { // what is written is counted when it is
		st := r.b.Stats()
		return st.FramesToService == 2 && st.FramesFromService == 3 && st.EventsToService == 2 && st.EventsFromService == 2
	})
	if st := r.b.Stats(); st.FramesMissed != 0 {
		t.Errorf("%+v", st)
	}
}

func TestInterruptTellsWhatWasPlayed(t *testing.T) {
	s := newScript(t)
	r := newRig(t, Config{}, s.URL).begin()
	service, _ := s.ready(t, "")
	service.audio(time.Second, 10) // the service's time need not begin at 0
	service.say(mark{typeMark, 5})
	eventually(t, "ten packets", func() bool { return len(r.audio.packets()) == 10 })
	r.audio.play(4)
	service.say(interrupt{typeInterrupt, 6})
	got := marked{Type: typeMarked}
	service.text(&got)
	if got.ID != 5 || !got.Interrupted {
		t.Errorf("%+v", got)
	}
	cut := interrupted{Type: typeInterrupted}
	service.text(&cut)
	if cut.ID != 6 || cut.PlayedMS != 80 || cut.DroppedMS != 120 || cut.PositionMS != 1080 {
		t.Errorf("%+v", cut)
	}
	report := playback{Type: typePlayback}
	service.text(&report)
	if report.TakenMS != 200 || report.QueuedMS != 0 {
		t.Errorf("%+v", report)
	}
}

func TestMarkIsAnsweredWhenTheAudioWasSent(t *testing.T) {
	s := newScript(t)
	r := newRig(t, Config{}, s.URL).begin()
	service, _ := s.ready(t, "")
	service.say(mark{typeMark, 1}) // nothing to wait for
	got := marked{Type: typeMarked}
	service.text(&got)
	if got.ID != 1 || got.Interrupted {
		t.Errorf("%+v", got)
	}
	service.audio(0, 5)
	service.say(mark{typeMark, 2})
	service.audio(0, 5)
	service.say(mark{typeMark, 3})
	eventually(t, "ten packets", func() bool { return len(r.audio.packets()) == 10 })
	r.audio.play(5)
	if service.text(&got); got.ID != 2 {
		t.Errorf("%+v", got)
	}
	r.audio.play(5)
	if service.text(&got); got.ID != 3 {
		t.Errorf("%+v", got)
	}
}

func TestTheWindowIsBoundedAndInterruptOvertakes(t *testing.T) {
	s := newScript(t)
	r := newRig(t, Config{Window: time.Second}, s.URL).begin()
	service, _ := s.ready(t, "")
	service.audio(0, 75) // 1.5 s
	service.say(interrupt{typeInterrupt, 1})
	cut := interrupted{Type: typeInterrupted}
	service.text(&cut) // though the queue was full
	if cut.DroppedMS != 1000 {
		t.Errorf("%+v", cut)
	}
	told := dropped{Type: typeDropped}
	service.text(&told)
	if told.What != "audio" || told.Count != 25 || told.MS != 500 || told.Reason != "window exceeded" {
		t.Errorf("%+v", told)
	}
	if st := r.b.Stats(); st.FramesDropped != 25 {
		t.Errorf("%+v", st)
	}
}

func TestServiceKilledInMidCall(t *testing.T) {
	first, second := newScript(t), newScript(t)
	r := newRig(t, Config{}, first.URL, second.URL).begin()
	service, m1 := first.ready(t, "")
	r.state(StateReady)
	service.audio(0, 10)
	r.audio.hear(0)
	service.frame()
	eventually(t, "ten packets", func() bool { return len(r.audio.packets()) == 10 })
	service.close()
	if c := r.state(StateReconnecting); c.Err == nil {
		t.Errorf("%+v", c)
	}
	// What happens meanwhile waits.
	r.audio.hear(1)
	r.events.in <- transceiver.Event{Text: true, Data: []byte("meanwhile")}
	r.audio.play(3)

	service, m2 := second.ready(t, "")
	if m2.Token != m1.Token || m2.Connection != 2 || m2.Resume == nil || m2.Resume.After == "" ||
		m2.Resume.QueuedMS < 140 || m2.Resume.QueuedMS > 200 {
		t.Errorf("%+v %+v", m2, m2.Resume)
	}
	lost := missed{Type: typeMissed}
	service.text(&lost)
	if lost.Reason != "reconnecting" || lost.Frames != 0 || lost.UnconfirmedFrames != 1 {
		t.Errorf("%+v", lost)
	}
	seen := map[Kind]bool{}
	for range 2 {
		h, payload := service.frame()
		seen[h.Kind] = true
		if h.Kind == KindEventText && string(payload) != "meanwhile" {
			t.Errorf("%q", payload)
		}
	}
	if !seen[KindAudio] || !seen[KindEventText] {
		t.Errorf("got %v", seen)
	}
	if c := r.state(StateReady); c.Connection != 2 {
		t.Errorf("%+v", c)
	}
	select {
	case <-r.closed:
		t.Error("the session was closed")
	default:
	}
}

func TestWhatTheSessionsQueueDroppedMeanwhileIsTold(t *testing.T) {
	s := newScript(t)
	r := newRig(t, Config{}, s.URL).begin()
	service, _ := s.ready(t, "")
	r.state(StateReady)
	service.close()
	r.state(StateReconnecting)
	r.audio.mu.Lock()
	r.audio.overrun = 70
	r.audio.mu.Unlock()
	service, _ = s.ready(t, "")
	lost := missed{Type: typeMissed}
	service.text(&lost)
	if lost.Frames != 70 || lost.MS != 1400 {
		t.Errorf("%+v", lost)
	}
}

func TestServiceRestartIsFollowedAtOnce(t *testing.T) {
	for attempt, want := range []bool{true, false} {
		if got := backoff(attempt, ErrRestart) == 0; got != want {
			t.Errorf("attempt %d: at once: %v", attempt, got)
		}
	}
	for attempt := range 40 {
		d := backoff(attempt, errors.New("x"))
		if full := min(firstBackoff<<min(attempt, 16), maxBackoff); d < full/2 || d > full {
			t.Errorf("attempt %d waits %v of %v", attempt, d, full)
		}
	}
	s := newScript(t)
	newRig(t, Config{}, s.URL).begin()
	service, _ := s.ready(t, "")
	go func() { _ = service.conn.Close(websocket.StatusServiceRestart, "restart") }()
	if _, m := s.ready(t, ""); m.Resume == nil || m.Resume.After != "service restart" {
		t.Errorf("%+v", m.Resume)
	}
}

func TestGivesUp(t *testing.T) {
	for _, keep := range []bool{false, true} {
		gone := httptest.NewServer(nil)
		gone.Close()
		r := newRig(t, Config{GiveUpAfter: 20 * time.Millisecond, KeepSession: keep}, gone.URL).begin()
		c := r.state(StateEnded)
		if !errors.Is(c.Err, ErrGivenUp) || !errors.Is(r.b.Err(), ErrGivenUp) {
			t.Errorf("%v", c.Err)
		}
		receive(t, "the end of the bridge", r.b.Done())
		if !keep {
			receive(t, "the end of the session", r.closed)
			continue
		}
		select {
		case <-r.closed:
			t.Error("the session was closed in spite of KeepSession")
		case <-time.After(20 * time.Millisecond):
		}
		r.cancel()
	}
}

func TestServiceEndsTheSession(t *testing.T) {
	s := newScript(t)
	r := newRig(t, Config{}, s.URL).begin()
	service, _ := s.ready(t, "")
	service.say(end{typeEnd, "goodbye"})
	var ended *EndError
	if c := r.state(StateEnded); !errors.As(c.Err, &ended) || ended.Reason != "goodbye" {
		t.Errorf("%v", c.Err)
	}
	receive(t, "the end of the session", r.closed)
	if err := service.ended(); websocket.CloseStatus(err) != websocket.StatusNormalClosure {
		t.Error(err)
	}
}

func TestSessionsEndIsTold(t *testing.T) {
	s := newScript(t)
	r := newRig(t, Config{}, s.URL).begin()
	service, _ := s.ready(t, "")
	r.state(StateReady)
	r.cancel()
	m := end{Type: typeEnd}
	service.text(&m)
	if m.Reason != "client closed" {
		t.Errorf("%+v", m)
	}
	_ = service.conn.Close(websocket.StatusNormalClosure, "")
	r.state(StateEnded)
}

func TestCloseLeavesTheSession(t *testing.T) {
	s := newScript(t)
	r := newRig(t, Config{}, s.URL).begin()
	service, _ := s.ready(t, "")
	r.state(StateReady)
	_ = r.b.Close()
	m := end{Type: typeEnd}
	service.text(&m)
	_ = service.conn.Close(websocket.StatusNormalClosure, "")
	if c := r.state(StateEnded); m.Reason != "released" || !errors.Is(c.Err, context.Canceled) {
		t.Errorf("%+v %v", m, c.Err)
	}
	select {
	case <-r.closed:
		t.Error("the session was closed")
	case <-time.After(10 * time.Millisecond):
	}
}

// A service that stops reading is told, and loses the session to one that
// does read. Another session never notices.
func TestServiceThatDoesNotRead(t *testing.T) {
	s := newScript(t)
	cfg := Config{KeepAlive: 30 * time.Millisecond, SilenceTimeout: 3 * time.Second} // time to read again
	slow := newRig(t, cfg, s.URL).begin()
	service, _ := s.ready(t, "")
	other := newRig(t, Config{}, s.URL).begin()
	good, _ := s.ready(t, "")
	var passed int
	stop := make(chan struct{})
	read := make(chan struct{})
	go func() { // the good one
		defer close(read)
		for {
			if _, _, err := good.conn.Read(context.Background()); err != nil {
				return
			}
			passed++
		}
	}()
	spoken := make(chan struct{})
	go func() {
		defer close(spoken)
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
				slow.audio.hear(n)
				other.audio.hear(n)
			}
		}
	}()
	eventually(t, "audio to be held back", func() bool { return slow.b.Stats().FramesMissed > 0 })
	// It reads again: all that was on the way, then the reason.
	lost := missed{Type: typeMissed}
	service.text(&lost)
	if lost.Reason != "not reading" || lost.Frames == 0 {
		t.Errorf("%+v", lost)
	}
	// And now it stops for good.
	c := slow.state(StateReconnecting)
	if !errors.Is(c.Err, ErrSilent) {
		t.Errorf("%v", c.Err)
	}
	service, m := s.ready(t, "")
	if m.Resume == nil || m.Resume.After != "not reading" {
		t.Errorf("%+v", m.Resume)
	}
	service.frame()
	close(stop)
	receive(t, "the end of speech", spoken)
	if st := other.b.Stats(); st.FramesMissed != 0 || st.Connections != 1 {
		t.Errorf("the other session: %+v", st)
	}
	good.close()
	receive(t, "the end of reading", read)
	if passed == 0 {
		t.Error("the other session got nothing")
	}
}
