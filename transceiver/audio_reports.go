package transceiver

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/pion/rtcp"

	"github.com/usher-rtc/usher/internal/opus"
)

const (
	// reportInterval is how often a session reports, as browsers do for audio.
	reportInterval = 5 * time.Second
	// firstReport is how soon after the first packet: early enough that a
	// client's next report answers it, so the round trip is known in seconds.
	firstReport = 500 * time.Millisecond
)

// arrivalClock measures jitter (RFC 3550 appendix A.8), in ticks of Opus.
type arrivalClock struct {
	started bool
	transit uint32
	jitter  float64
}

// arrive notes a packet with an RTP timestamp.
func (c *arrivalClock) arrive(now time.Time, timestamp uint32) {
	transit := uint32(now.UnixMicro()*(opus.Rate/1000)/1000) - timestamp
	if d := int32(transit - c.transit); c.started {
		c.jitter += (float64(max(d, -d)) - c.jitter) / 16
	}
	c.started, c.transit = true, transit
}

// ntp returns a time as NTP does: seconds since 1900 in 32.32 bits.
func ntp(t time.Time) uint64 {
	const sinceEpoch = 2208988800 // 1900 to 1970
	return uint64(t.Unix()+sinceEpoch)<<32 | uint64(t.Nanosecond())<<32/1e9
}

// middle returns the 32 bits of an NTP time that reports carry: 1/65,536 s.
func middle(ntp uint64) uint32 { return uint32(ntp >> 16) }

// compact turns a time in 1/65,536 s into a duration.
func compact(t uint32) time.Duration { return time.Duration(t) * time.Second >> 16 }

// audioReports exchanges RTCP with the client (RFC 3550 section 6.4): sender
// reports with a report block about the client's stream, which is how it learns
// of the round trip and of loss, and the client's own reports about ours.
//
// There is no timer: a report leaves with the packet that finds one due, since
// a call without packets has nothing to report. With Config.NewAPI reports are
// the business of its interceptors, and only what the client sends is read.
type audioReports struct {
	enabled bool
	cname   string
	write   func([]rtcp.Packet) error
	in      *audioIn
	out     *audioOut
	created time.Time
	due     atomic.Int64 // nanoseconds since created; 0: no packet yet

	mu       sync.Mutex
	lastSR   uint32 // of the client's newest sender report
	lastFrom uint32 // its SSRC
	lastAt   time.Time
	expected int64 // at the last report, for the fraction lost
	received uint64
	ssrc     uint32 // that these are about

	roundTrip, jitter time.Duration
	lost              uint32
}

// packet is called after packets came or went.
func (r *audioReports) packet(now time.Time) {
	if !r.enabled {
		return
	}
	since := int64(now.Sub(r.created))
	due := r.due.Load()
	switch {
	case due == 0:
		r.due.CompareAndSwap(0, since+int64(firstReport))
	case since >= due && r.due.CompareAndSwap(due, since+int64(reportInterval)):
		r.send(now)
	}
}

// send writes a compound packet, if there is anything to report.
func (r *audioReports) send(now time.Time) {
	var blocks []rtcp.ReceptionReport
	if b, ok := r.block(now); ok {
		blocks = append(blocks, b)
	}
	ssrc, rtpTime, packets, octets, ok := r.out.clock(now)
	var report rtcp.Packet = &rtcp.ReceiverReport{SSRC: ssrc, Reports: blocks}
	switch {
	case ok:
		report = &rtcp.SenderReport{
			SSRC: ssrc, NTPTime: ntp(now), RTPTime: rtpTime, PacketCount: packets, OctetCount: octets, Reports: blocks,
		}
	case len(blocks) == 0 || ssrc == 0:
		return
	}
	// An error means that the call is ending.
	_ = r.write([]rtcp.Packet{report, rtcp.NewCNAMESourceDescription(ssrc, r.cname)})
}

// block describes how the client's stream arrives.
func (r *audioReports) block(now time.Time) (b rtcp.ReceptionReport, ok bool) {
	r.in.mu.Lock()
	t := &r.in.track
	ssrc, expected, received := t.ssrc, t.lastExt-t.first+1, t.packets
	b = rtcp.ReceptionReport{SSRC: ssrc, LastSequenceNumber: uint32(t.lastExt), Jitter: uint32(t.clock.jitter)}
	ok = t.started
	r.in.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ssrc != ssrc || expected < r.expected {
		r.ssrc, r.expected, r.received = ssrc, 0, 0
	}
	lost := max(expected-int64(received), 0)
	b.TotalLost = uint32(min(lost, 1<<23-1))
	if e, g := expected-r.expected, int64(received-r.received); e > 0 && e > g {
		b.FractionLost = uint8(min((e-g)<<8/e, 255))
	}
	r.expected, r.received = expected, received
	if r.lastSR != 0 && r.lastFrom == ssrc {
		b.LastSenderReport = r.lastSR
		b.Delay = uint32(now.Sub(r.lastAt) << 16 / time.Second)
	}
	return b, ok
}

// handle reads RTCP that the client sent.
func (r *audioReports) handle(now time.Time, b []byte, ours uint32) {
	packets, err := rtcp.Unmarshal(b)
	if err != nil {
		return
	}
	for _, p := range packets {
		switch p := p.(type) {
		case *rtcp.SenderReport:
			r.mu.Lock()
			r.lastSR, r.lastFrom, r.lastAt = middle(p.NTPTime), p.SSRC, now
			r.mu.Unlock()
			r.about(now, p.Reports, ours)
		case *rtcp.ReceiverReport:
			r.about(now, p.Reports, ours)
		}
	}
}

// about takes what the client says of our stream.
func (r *audioReports) about(now time.Time, blocks []rtcp.ReceptionReport, ours uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range blocks {
		b := &blocks[i]
		if b.SSRC != ours {
			continue
		}
		r.lost, r.jitter = b.TotalLost, opus.Time(int64(b.Jitter))
		if b.LastSenderReport == 0 {
			continue
		}
		// A clock that was set meanwhile makes nonsense, which is not taken.
		if rtt := middle(ntp(now)) - b.LastSenderReport - b.Delay; compact(rtt) < time.Minute {
			r.roundTrip = compact(rtt)
		}
	}
}

func (r *audioReports) stats(st *AudioStats) {
	r.mu.Lock()
	defer r.mu.Unlock()
	st.RoundTrip, st.LostOut, st.JitterOut = r.roundTrip, uint64(r.lost), r.jitter
}
