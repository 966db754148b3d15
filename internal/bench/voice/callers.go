package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/pion/ice/v4"
	"github.com/pion/interceptor"
	"github.com/pion/rtp"
	"github.com/pion/webrtc/v4"

	"github.com/usher-rtc/usher/internal/bench/hosts"
	"github.com/usher-rtc/usher/internal/bench/stats"
)

const (
	frameInterval = 20 * time.Millisecond
	frameTicks    = 960
	// window is how many frames of a caller may be on the way and still be
	// recognised: 5 s of them.
	window = 256
	// slack is how far the sender may sleep past a frame's time.
	slack = 100 * time.Microsecond
	// silence is longer than what the Host keeps for a service, 1 s.
	silence = 1500 * time.Millisecond
	// straggle is how long the last frames are waited for.
	straggle = time.Second
	// setupLimit bounds one call's set-up on a machine that is busy.
	setupLimit = 30 * time.Second
	// warmLimit bounds the wait until a caller hears itself.
	warmLimit = 30 * time.Second
	atOnce    = 8
)

// caller is a Pion client without interceptors that speaks and listens.
type caller struct {
	pc    *webrtc.PeerConnection
	track *webrtc.TrackLocalStaticRTP
	next  uint32 // number of the frame that is sent next

	mu        sync.Mutex
	count     bool              // what comes back now counts
	from      uint32            // the first frame that counts
	sentAt    [window]time.Time // by number
	last      uint32            // number of the last frame that came back
	heard     bool
	back      int
	reordered int
	delays    []time.Duration
	open      chan struct{}
}

// callers are the clients of a part.
type callers struct{ all []*caller }

// result is what came of talking.
type result struct {
	sent, back, reordered int
	delays                []time.Duration
}

func (r *result) lost() int { return r.sent - r.back }

// quantile is that of the delays in milliseconds.
func (r *result) quantile(q float64) float64 { return stats.Millis(stats.Quantile(r.delays, q)) }

// newCallers makes n calls.
func newCallers(ctx context.Context, server string, n int) (*callers, error) {
	c := &callers{all: make([]*caller, n)}
	media := &webrtc.MediaEngine{}
	err := media.RegisterCodec(webrtc.RTPCodecParameters{RTPCodecCapability: hosts.Opus, PayloadType: 111}, webrtc.RTPCodecTypeAudio)
	if err != nil {
		return nil, err
	}
	errs := make(chan error, n)
	places := make(chan struct{}, atOnce)
	for i := range n {
		places <- struct{}{}
		go func() {
			defer func() { <-places }()
			var err error
			c.all[i], err = newCaller(ctx, media, server)
			errs <- err
		}()
	}
	for range n {
		err = errors.Join(err, <-errs)
	}
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

func newCaller(ctx context.Context, media *webrtc.MediaEngine, server string) (c *caller, err error) {
	ctx, cancel := context.WithTimeout(ctx, setupLimit)
	defer cancel()
	se := webrtc.SettingEngine{LoggerFactory: hosts.Quiet{}}
	se.SetNetworkTypes([]webrtc.NetworkType{webrtc.NetworkTypeUDP4})
	se.SetIncludeLoopbackCandidate(true)
	se.SetICEMaxBindingRequests(1000) // or a client gives up on a busy machine after 1.5 s
	se.SetIPFilter(func(ip net.IP) bool { return ip.IsLoopback() })
	se.SetICEMulticastDNSMode(ice.MulticastDNSModeDisabled)
	api := webrtc.NewAPI(webrtc.WithMediaEngine(media), webrtc.WithInterceptorRegistry(&interceptor.Registry{}), webrtc.WithSettingEngine(se))
	c = &caller{open: make(chan struct{}), next: 1}
	if c.pc, err = api.NewPeerConnection(webrtc.Configuration{}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = c.pc.Close()
		}
	}()
	if c.track, err = webrtc.NewTrackLocalStaticRTP(hosts.Opus, "audio", "caller"); err != nil {
		return nil, err
	}
	if _, err = c.pc.AddTrack(c.track); err != nil {
		return nil, err
	}
	c.pc.OnTrack(func(track *webrtc.TrackRemote, _ *webrtc.RTPReceiver) { c.listen(track) })
	c.pc.OnConnectionStateChange(func(s webrtc.PeerConnectionState) {
		if s == webrtc.PeerConnectionStateConnected {
			close(c.open)
		}
	})
	offer, err := c.pc.CreateOffer(nil)
	if err != nil {
		return nil, err
	}
	if err := c.pc.SetLocalDescription(offer); err != nil {
		return nil, err
	}
	answer, err := post(ctx, server, offer.SDP)
	if err != nil {
		return nil, err
	}
	if err := c.pc.SetRemoteDescription(webrtc.SessionDescription{Type: webrtc.SDPTypeAnswer, SDP: answer}); err != nil {
		return nil, err
	}
	select {
	case <-c.open:
		return c, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("a call was not set up: %v", c.pc.ConnectionState())
	}
}

// listen notes when frames come back.
func (c *caller) listen(track *webrtc.TrackRemote) {
	buf := make([]byte, 1500)
	var p rtp.Packet
	for {
		n, _, err := track.Read(buf)
		if err != nil {
			return
		}
		now := time.Now()
		if p.Unmarshal(buf[:n]) != nil || len(p.Payload) != hosts.PacketBytes {
			continue // silence that the Host fills a pause with
		}
		c.came(binary.BigEndian.Uint32(p.Payload[1:]), now)
	}
}

func (c *caller) came(number uint32, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.heard = true
	if !c.count || number < c.from {
		return
	}
	c.back++
	if number <= c.last {
		c.reordered++
	}
	c.last = max(c.last, number)
	c.delays = append(c.delays, now.Sub(c.sentAt[number%window]))
}

// send speaks one frame.
func (c *caller) send() error {
	payload := make([]byte, hosts.PacketBytes)
	payload[0] = 0x78 // RFC 6716 section 3.1: CELT, full band, 20 ms, mono
	binary.BigEndian.PutUint32(payload[1:], c.next)
	c.mu.Lock()
	c.sentAt[c.next%window] = time.Now()
	c.mu.Unlock()
	err := c.track.WriteRTP(&rtp.Packet{
		Header:  rtp.Header{Version: 2, PayloadType: 111, SequenceNumber: uint16(c.next), Timestamp: c.next * frameTicks},
		Payload: payload,
	})
	c.next++
	return err
}

// run speaks with all voices, spread evenly over time as those of independent
// calls are, until the frames that are due by then are sent or stop says so.
func (c *callers) run(ctx context.Context, d time.Duration, stop func() bool) (sent int, err error) {
	total := int(d/frameInterval) * len(c.all)
	each := frameInterval / time.Duration(len(c.all))
	begin := time.Now()
	for sent < total && !stop() {
		for due := min(int(time.Since(begin)/each), total); sent < due; sent++ {
			if err := c.all[sent%len(c.all)].send(); err != nil {
				return sent, err
			}
		}
		if err := ctx.Err(); err != nil {
			return sent, err
		}
		time.Sleep(slack)
	}
	return sent, nil
}

// warm speaks until every caller hears itself, is silent for a while, and speaks
// a second more, in which buffers find their size. What a caller said before its
// service was there came to the service all at once, and an echo of it plays
// for as long as it lasts: the silence lets it end.
func (c *callers) warm(ctx context.Context) error {
	all := func() bool {
		for _, one := range c.all {
			one.mu.Lock()
			heard := one.heard
			one.mu.Unlock()
			if !heard {
				return false
			}
		}
		return true
	}
	if _, err := c.run(ctx, warmLimit, all); err != nil {
		return err
	}
	if !all() {
		return fmt.Errorf("after %v not every caller hears itself", warmLimit)
	}
	select {
	case <-time.After(silence):
	case <-ctx.Done():
		return ctx.Err()
	}
	_, err := c.run(ctx, time.Second, func() bool { return false })
	return err
}

// talk speaks for a while and returns what came back.
func (c *callers) talk(ctx context.Context, d time.Duration) (*result, error) {
	for _, one := range c.all {
		one.mu.Lock()
		one.count, one.from = true, one.next
		one.delays = make([]time.Duration, 0, d/frameInterval)
		one.mu.Unlock()
	}
	sent, err := c.run(ctx, d, func() bool { return false })
	if err != nil {
		return nil, err
	}
	r := &result{sent: sent}
	for end := time.Now().Add(straggle); ; time.Sleep(time.Millisecond) {
		r.back = 0
		for _, one := range c.all {
			one.mu.Lock()
			r.back += one.back
			one.mu.Unlock()
		}
		if r.back >= r.sent || time.Now().After(end) {
			break
		}
	}
	r.back = 0
	for _, one := range c.all {
		one.mu.Lock()
		one.count = false
		r.back += one.back
		r.reordered += one.reordered
		r.delays = append(r.delays, one.delays...)
		one.mu.Unlock()
	}
	return r, nil
}

func (c *callers) close() {
	var wg sync.WaitGroup
	for _, one := range c.all {
		if one != nil {
			wg.Go(func() { _ = one.pc.GracefulClose() })
		}
	}
	wg.Wait()
}

// measure talks with n callers to a server.
func measure(ctx context.Context, server string, n int, d time.Duration) (*result, error) {
	c, err := newCallers(ctx, server, n)
	if err != nil {
		return nil, err
	}
	defer c.close()
	if err := c.warm(ctx); err != nil {
		return nil, err
	}
	return c.talk(ctx, d)
}
