package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/pion/webrtc/v4"
	"github.com/pion/webrtc/v4/pkg/media"

	"github.com/usher-rtc/usher/internal/e2e/link"
	"github.com/usher-rtc/usher/internal/e2e/netns"
	"github.com/usher-rtc/usher/transceiver"
	"github.com/usher-rtc/usher/ufrag"
)

// The network of the tests in which something moves: clients are 25 ms away from
// the relay, behind a NAT at natAddr.
const (
	oneWay    = 25 * time.Millisecond
	natAddr   = "127.0.1.1"
	relayPage = "http://127.0.0.1:8081"
)

// moving is a relay process and the Hosts of the test itself, which can say when
// each packet arrived, with a link in front of each ingress.
type moving struct {
	*network
	keys      *ufrag.Keyring
	codec     ufrag.Codec
	links     []*link.Link
	relayArgs []string
	relay     *process
	hosts     []*transceiver.Host
	urls      []string

	mu     sync.Mutex
	meters map[uint32]*meter // by the session in the first ufrag
}

// newMoving starts hosts Hosts behind a relay with ingresses addresses.
func newMoving(t *testing.T, ctx context.Context, hosts, ingresses int) *moving {
	t.Helper()
	need(t, netns.Available())
	path, codec := keyFile(t, ctx)
	keys, err := ufrag.ReadKeyFile(path)
	if err != nil {
		t.Fatal(err)
	}
	m := &moving{network: loopbackNetwork(t), keys: keys, codec: codec, meters: make(map[uint32]*meter)}
	var advertised []transceiver.Ingress
	m.relayArgs = []string{
		"-trunk", "127.0.0.1:4000", "-http", "127.0.0.1:8081", "-keys", path, "-allow-upstream", "127.0.0.1",
		"-workers", "2", "-cluster", "7", "-drain", "500ms",
	}
	for i := range ingresses {
		public := netip.MustParseAddrPort(fmt.Sprintf("127.0.0.1:%d", 3478+i))
		local := netip.MustParseAddrPort(fmt.Sprintf("127.0.0.1:%d", 13478+i))
		l, err := link.New(link.Config{
			Listen: public, Relay: local, Source: netip.MustParseAddr(natAddr), Delay: oneWay, Enter: m.Do,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		})
		m.links = append(m.links, l)
		m.relayArgs = append(m.relayArgs, "-listen", fmt.Sprintf("id=%d,addr=%v,advertise=%v", i+1, local, public))
		advertised = append(advertised, transceiver.Ingress{ID: uint16(i + 1), Advertise: public})
	}
	m.relay = m.run(t, "relayd", m.relayArgs...)
	for i := range hosts {
		m.addHost(t, transceiver.Config{
			Listen: netip.MustParseAddrPort(fmt.Sprintf("127.0.0.1:%d", 9001+i)), Cluster: 7, Codec: codec, TrunkKeys: keys,
			AllowRelays: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}, Ingresses: advertised, OnSession: m.attach,
		}, fmt.Sprintf("127.0.0.1:%d", 8091+i))
	}
	eventually(t, 15*time.Second, func() string { return m.relayAnswers(ctx) })
	t.Cleanup(func() {
		if t.Failed() {
			m.explain(t)
		}
	})
	return m
}

// explain logs what relay and Hosts count.
func (m *moving) explain(t *testing.T) {
	for _, page := range []string{"/debug/stats", "/debug/flows"} {
		request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, relayPage+page, nil)
		if err != nil {
			t.Error(err)
			return
		}
		response, err := m.client.Do(request)
		if err != nil {
			t.Logf("%s: %v", page, err)
			continue
		}
		body, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		t.Logf("%s: %s %v", page, body, err)
	}
	for _, h := range m.hosts {
		t.Logf("Host %v: %+v", h.Addr(), h.Stats())
		for i, s := range h.Sessions() {
			if i < 4 {
				t.Logf("session %d: %+v", s.Route().Session, s.Stats())
			}
		}
	}
	for _, l := range m.links {
		t.Logf("link: %d packets were late for a rebinding", l.Late())
	}
}

// addHost starts a Host in the test's own process and its signalling.
func (m *moving) addHost(t *testing.T, cfg transceiver.Config, page string) {
	t.Helper()
	var host *transceiver.Host
	err := m.Do(func() (err error) {
		host, err = transceiver.NewHost(cfg)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := host.Close(); err != nil {
			t.Error(err)
		}
	})
	signalling, err := transceiver.NewHandler(host, transceiver.SignallingConfig{})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/calls", signalling)
	mux.Handle("/calls/", signalling)
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = io.WriteString(w, `<!doctype html><title>A call that moves</title><link rel="icon" href="data:,">`)
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	listener := m.listen(t, page)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
	})
	m.hosts, m.urls = append(m.hosts, host), append(m.urls, "http://"+page)
}

// relayAnswers returns "" once the relay has bound its sockets.
func (m *moving) relayAnswers(ctx context.Context) string {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, relayPage+"/healthz", nil)
	if err != nil {
		return err.Error()
	}
	response, err := m.client.Do(request)
	if err != nil {
		return err.Error()
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return response.Status
	}
	return ""
}

// mark is a numbered message and when it arrived.
type mark struct {
	N  int
	At time.Time
}

// meter is the application of one session: it sends 50 packets of audio and 50
// messages a second, and keeps the times of those that come.
type meter struct {
	session *transceiver.Session

	mu       sync.Mutex
	audio    []time.Time
	counters []mark
}

// attach is the Hosts' OnSession and makes a session a meter.
func (m *moving) attach(s *transceiver.Session) error {
	r := &meter{session: s}
	m.mu.Lock()
	m.meters[s.Route().Session] = r
	m.mu.Unlock()
	s.OnDataChannel(func(channel *webrtc.DataChannel) {
		channel.OnMessage(func(message webrtc.DataChannelMessage) {
			n, err := strconv.Atoi(string(message.Data))
			if err != nil {
				return // the crowd's channels carry nothing
			}
			r.mu.Lock()
			r.counters = append(r.counters, mark{n, time.Now()})
			r.mu.Unlock()
		})
		if channel.Label() != counterLabel {
			return
		}
		s.Go(func(ctx context.Context) {
			everyPacket(ctx, func(n int) bool { return channel.SendText(strconv.Itoa(n)) == nil })
		})
	})
	if len(s.PeerConnection().GetTransceivers()) == 0 {
		return nil
	}
	track, err := webrtc.NewTrackLocalStaticSample(
		webrtc.RTPCodecCapability{MimeType: webrtc.MimeTypeOpus, ClockRate: 48000, Channels: 2}, "audio", "host")
	if err != nil {
		return err
	}
	if _, err := s.PeerConnection().AddTrack(track); err != nil {
		return err
	}
	s.OnTrack(func(remote *webrtc.TrackRemote, _ *webrtc.RTPReceiver) {
		for {
			if _, _, err := remote.ReadRTP(); err != nil {
				return
			}
			r.mu.Lock()
			r.audio = append(r.audio, time.Now())
			r.mu.Unlock()
		}
	})
	s.Go(func(ctx context.Context) {
		select {
		case <-s.Connected():
		case <-ctx.Done():
			return
		}
		everyPacket(ctx, func(int) bool {
			return track.WriteSample(media.Sample{Data: opusPacket(), Duration: packetTime}) == nil
		})
	})
	return nil
}

const (
	// counterLabel names the data channel with the numbered messages.
	counterLabel = "counter"
	// packetTime is the distance of packets and of messages.
	packetTime = 20 * time.Millisecond
)

// opusPacket is a packet that a decoder takes for 20 ms of mono (RFC 6716
// section 3.1) and that no discontinuous transmission would leave out.
func opusPacket() []byte {
	b := make([]byte, opusBytes)
	b[0] = 0x78
	return b
}

// everyPacket calls f with 0, 1 and so on until it returns false or the context ends.
func everyPacket(ctx context.Context, f func(n int) bool) {
	ticker := time.NewTicker(packetTime)
	defer ticker.Stop()
	for n := 0; ; n++ {
		select {
		case <-ticker.C:
			if !f(n) {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// meterOf returns the meter of the session that a first answer's ufrag names.
func (m *moving) meterOf(t *testing.T, ufragText string) *meter {
	t.Helper()
	route, err := m.codec.Decode([]byte(ufragText))
	if err != nil {
		t.Fatalf("ufrag %s: %v", ufragText, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.meters[route.Session]
	if r == nil {
		t.Fatalf("no session %d", route.Session)
	}
	return r
}

func (r *meter) heard() (audio []time.Time, counters []mark) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]time.Time(nil), r.audio...), append([]mark(nil), r.counters...)
}

func times(counters []mark) (all []time.Time) {
	for _, c := range counters {
		all = append(all, c.At)
	}
	return all
}

// largestGap returns the longest time without an arrival between two times, and
// how much of it lies before the first and after the last arrival too, so that a
// stream that stops or never starts has a gap as well.
func largestGap(arrivals []time.Time, from, to time.Time) (gap time.Duration) {
	last := from
	for _, at := range arrivals {
		if at.After(to) {
			break
		}
		gap = max(gap, at.Sub(last)) // negative before from
		if at.After(last) {
			last = at
		}
	}
	return max(gap, to.Sub(last))
}

func TestLargestGap(t *testing.T) {
	base := time.Now()
	at := func(ms ...int) (all []time.Time) {
		for _, v := range ms {
			all = append(all, base.Add(time.Duration(v)*time.Millisecond))
		}
		return all
	}
	for _, tt := range []struct {
		name string
		ms   []int
		want time.Duration
	}{
		{"between", []int{-20, 0, 20, 90, 100}, 70},
		{"at the start", []int{-80, 60, 80}, 60},
		{"at the end", []int{0, 20, 40}, 60},
		{"none", nil, 100},
		{"all before", []int{-20, -10}, 100},
		{"the rest is later", []int{50, 500, 900}, 50},
	} {
		if got := largestGap(at(tt.ms...), base, base.Add(100*time.Millisecond)); got != tt.want*time.Millisecond {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want*time.Millisecond)
		}
	}
}
