package bridge

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/usher-rtc/usher/transceiver"
)

// Whatever a service does, the session lives and the next connection is a good
// one.
func TestHostileServices(t *testing.T) {
	text, bin := websocket.MessageText, websocket.MessageBinary
	send := func(kind websocket.MessageType, data string) func(*rawService) {
		return func(s *rawService) {
			_ = s.conn.Write(context.Background(), kind, []byte(data)) // it may be cut off while it writes
		}
	}
	ready := func(then func(*rawService)) func(*rawService) {
		return func(s *rawService) {
			s.say(ready{Type: typeReady})
			then(s)
		}
	}
	for _, tc := range []struct {
		name string
		do   func(*rawService)
		want error // nil: any
	}{
		{"no ready", func(*rawService) {}, ErrProtocol},
		{"ready is no JSON", send(text, "}"), ErrProtocol},
		{"ready is binary", send(bin, "\x01ready"), ErrProtocol},
		{"something else than ready", send(text, `{"type":"mark","id":1}`), ErrProtocol},
		{"a codec that was not offered", send(text, `{"type":"ready","codec":"pcm16/48000"}`), ErrProtocol},
		{"closed instead of ready", func(s *rawService) { _ = s.conn.Close(websocket.StatusTryAgainLater, "busy") }, nil},
		{"dropped instead of ready", func(s *rawService) { s.close() }, nil},
		{"too long before ready", send(text, strings.Repeat(" ", MaxMessage+1)), ErrProtocol},
		{"ready twice", ready(send(text, `{"type":"ready"}`)), ErrProtocol},
		{"garbage", ready(send(text, "\x00\xff")), ErrProtocol},
		{"an id that is none", ready(send(text, `{"type":"interrupt","id":-1}`)), ErrProtocol},
		{"a short binary message", ready(send(bin, "\x01\x00\x00")), ErrProtocol},
		{"a time beyond all", ready(send(bin, "\x01\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff")), ErrProtocol},
		{"a message that is too long", ready(send(bin, "\x01"+strings.Repeat("\x00", MaxMessage))), ErrProtocol},
		{"too many marks", ready(func(s *rawService) {
			s.audio(0, 1)
			for i := range uint64(maxMarks + 1) {
				s.say(mark{typeMark, i})
			}
		}), ErrProtocol},
		{"no pong", ready(func(*rawService) {}), ErrSilent},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bad, good := newScript(t), newScript(t)
			// Short is only what the service is to exceed: everybody else may be slow.
			cfg := Config{DialTimeout: patience, KeepAlive: time.Second, SilenceTimeout: patience}
			switch tc.name {
			case "no ready":
				cfg.DialTimeout = 3 * time.Second
			case "no pong":
				cfg.KeepAlive, cfg.SilenceTimeout = 100*time.Millisecond, 3*time.Second
			}
			r := newRig(t, cfg, bad.URL, good.URL).begin()
			service := bad.accept(t)
			service.text(&start{Type: typeStart})
			tc.do(service)
			if tc.want != ErrSilent {
				go service.ended() // a service that does not close is waited for
			}
			r.audio.hear(0)
			good.ready(t, "")
			var c Change
			for limit := time.After(patience); c.Err == nil; {
				select {
				case c = <-r.changes:
				case <-limit:
					t.Fatal("no change says what is wrong")
				}
			}
			if tc.want != nil && !errors.Is(c.Err, tc.want) {
				t.Errorf("%v, want %v", c.Err, tc.want)
			}
			r.state(StateReady)
			select {
			case <-r.closed:
				t.Error("the session was closed")
			default:
			}
		})
	}
}

func TestServicesThatAreNone(t *testing.T) {
	other := newScript(t, "graphql-ws")
	page := httptest.NewServer(http.NotFoundHandler())
	defer page.Close()
	for name, url := range map[string]string{"another protocol": other.URL, "a web page": page.URL, "no URL": "::"} {
		t.Run(name, func(t *testing.T) {
			good := newScript(t)
			r := newRig(t, Config{}, url, good.URL).begin()
			good.ready(t, "")
			r.state(StateConnecting)
			if c := r.state(StateConnecting); c.Err == nil || (url == other.URL) != errors.Is(c.Err, ErrVersion) {
				t.Errorf("%v", c.Err)
			}
			r.state(StateReady)
		})
	}
}

// Audio that is none, and events that are no text, cost the service nothing
// but a message.
func TestBadContentIsDroppedAndTold(t *testing.T) {
	s := newScript(t)
	r := newRig(t, Config{}, s.URL).begin()
	service, _ := s.ready(t, "")
	for _, payload := range []string{"", "\x03", "\x78" + strings.Repeat("x", 1300), "\x7b\x3f"} {
		service.binary(Header{Kind: KindAudio}, []byte(payload))
	}
	service.binary(Header{Kind: KindEventText}, []byte{0xff})
	service.binary(Header{Kind: 77}, []byte("of a later version"))
	for range 2 {
		m := dropped{Type: typeDropped}
		service.text(&m)
		if (m.What == "audio" && m.Count != 4) || (m.What == "event" && m.Count != 1) || m.Reason == "" {
			t.Errorf("%+v", m)
		}
	}
	service.audio(0, 1)
	eventually(t, "one packet", func() bool { return len(r.audio.packets()) == 1 })
	if st := r.b.Stats(); st.FramesDropped != 4 || st.EventsDropped != 1 {
		t.Errorf("%+v", st)
	}
}

// A client that does not read its events delays neither the interruption nor
// anything else.
func TestClientThatDoesNotRead(t *testing.T) {
	s := newScript(t)
	r := newRig(t, Config{}, s.URL).begin()
	service, _ := s.ready(t, "")
	n := cap(r.events.out) + maxDownEvents + 50
	for range n {
		service.binary(Header{Kind: KindEventText}, []byte("delta"))
	}
	service.say(interrupt{typeInterrupt, 1})
	service.text(&interrupted{Type: typeInterrupted})
	m := dropped{Type: typeDropped}
	service.text(&m)
	// How many depends on how fast the queue moves on to the channel.
	if m.What != "event" || m.Count == 0 || m.Count > uint64(n-maxDownEvents) {
		t.Errorf("%+v", m)
	}
	for range n - int(m.Count) {
		if ev := r.event(); string(ev.Data) != "delta" {
			t.Errorf("%q", ev.Data)
		}
	}
}

// What a client says before the first service is ready is not lost.
func TestEventsWaitForTheFirstService(t *testing.T) {
	s := newScript(t)
	r := newRig(t, Config{}, s.URL)
	r.events.in <- transceiver.Event{Text: true, Data: []byte("early")}
	r.begin()
	service, _ := s.ready(t, "")
	if _, payload := service.frame(); string(payload) != "early" {
		t.Errorf("%q", payload)
	}
}
