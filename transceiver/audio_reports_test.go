package transceiver

import (
	"testing"
	"time"

	"github.com/pion/rtcp"
	"github.com/pion/rtp"

	"github.com/usher-rtc/usher/internal/opus"
)

// newTestReports makes the reports of a call, without its network.
func newTestReports(t *testing.T) (r *audioReports, written *[]rtcp.Packet) {
	t.Helper()
	in, _ := newTestIn(AudioConfig{})
	out := &audioOut{header: rtp.Header{SSRC: 42}}
	written = new([]rtcp.Packet)
	return &audioReports{
		enabled: true, cname: "name", in: in, out: out, created: time.Now(),
		write: func(p []rtcp.Packet) error {
			*written = append(*written, p...)
			return nil
		},
	}, written
}

func TestRoundTripOfReports(t *testing.T) {
	now := time.Unix(1_800_000_000, 123_456_789)
	sent := middle(ntp(now.Add(-1500 * time.Millisecond)))
	for name, c := range map[string]struct {
		block rtcp.ReceptionReport
		want  time.Duration
		lost  uint64
	}{
		"as it should be":                {rtcp.ReceptionReport{SSRC: 42, LastSenderReport: sent, Delay: 1 << 16, TotalLost: 3}, 500 * time.Millisecond, 3},
		"no report of ours was seen yet": {rtcp.ReceptionReport{SSRC: 42, Delay: 1 << 16, TotalLost: 3}, 0, 3},
		"a clock that was set":           {rtcp.ReceptionReport{SSRC: 42, LastSenderReport: sent, Delay: 2 << 16}, 0, 0},
		"another stream":                 {rtcp.ReceptionReport{SSRC: 43, LastSenderReport: sent, Delay: 1 << 16, TotalLost: 3}, 0, 0},
	} {
		for kind, p := range map[string]rtcp.Packet{
			"receiver report": &rtcp.ReceiverReport{Reports: []rtcp.ReceptionReport{c.block}},
			"sender report":   &rtcp.SenderReport{Reports: []rtcp.ReceptionReport{c.block}},
		} {
			r, _ := newTestReports(t)
			b, err := p.Marshal()
			if err != nil {
				t.Fatal(err)
			}
			r.handle(now, b, 42)
			var st AudioStats
			r.stats(&st)
			if d := st.RoundTrip - c.want; d.Abs() > time.Millisecond || st.LostOut != c.lost {
				t.Errorf("%s, %s: %+v", name, kind, st)
			}
		}
	}
}

func TestReportsSayHowTheStreamArrives(t *testing.T) {
	r, written := newTestReports(t)
	now := r.created
	for n := range 100 {
		now = now.Add(20 * time.Millisecond)
		if n%10 == 5 {
			continue // a tenth is lost
		}
		r.in.receive(now, rtpPacket(65500+n))
	}
	at := time.Unix(1_800_000_000, 0)
	sr, err := (&rtcp.SenderReport{SSRC: 7, NTPTime: ntp(at)}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	r.handle(now, sr, 42)
	r.send(now.Add(250 * time.Millisecond))
	if len(*written) != 2 {
		t.Fatalf("%v", *written)
	}
	report, _ := (*written)[0].(*rtcp.ReceiverReport)
	if report == nil || report.SSRC != 42 || len(report.Reports) != 1 {
		t.Fatalf("%v", (*written)[0])
	}
	b := report.Reports[0]
	if b.SSRC != 7 || b.TotalLost != 10 || b.FractionLost != 25 || b.LastSequenceNumber != 65599 {
		t.Errorf("%+v", b)
	}
	if b.LastSenderReport != middle(ntp(at)) || b.Delay != 1<<14 {
		t.Errorf("the client's report: %+v", b)
	}
	if names, _ := (*written)[1].(*rtcp.SourceDescription); names == nil || names.Chunks[0].Items[0].Text != "name" {
		t.Errorf("%v", (*written)[1])
	}
	// Nothing is lost in the next interval.
	for n := 100; n < 110; n++ {
		r.in.receive(now, rtpPacket(65500+n))
	}
	*written = nil
	r.send(now)
	report, _ = (*written)[0].(*rtcp.ReceiverReport)
	if b := report.Reports[0]; b.TotalLost != 10 || b.FractionLost != 0 {
		t.Errorf("%+v", b)
	}
}

func TestReportsRideOnPackets(t *testing.T) {
	r, written := newTestReports(t)
	r.out.sent, r.out.due = 1, r.created
	for i := range 60 * 50 { // a minute
		r.packet(r.created.Add(time.Duration(i) * 20 * time.Millisecond))
	}
	if n := len(*written) / 2; n != 12 {
		t.Errorf("%d reports in a minute", n)
	}
	sr, _ := (*written)[0].(*rtcp.SenderReport)
	if sr == nil || sr.PacketCount != 1 || sr.RTPTime != uint32(firstReport*(opus.Rate/1000)/time.Millisecond) {
		t.Errorf("%v", (*written)[0])
	}
	r.enabled = false
	*written = nil
	r.packet(r.created.Add(time.Hour))
	if len(*written) != 0 {
		t.Error("reports though others send them")
	}
}

func TestJitter(t *testing.T) {
	var c arrivalClock
	now := time.Unix(1_800_000_000, 0)
	for i := range 1000 {
		c.arrive(now.Add(time.Duration(i)*20*time.Millisecond+time.Duration(i%2)*4*time.Millisecond), uint32(i)*960)
	}
	if d := opus.Time(int64(c.jitter)); d < 3900*time.Microsecond || d > 4100*time.Microsecond {
		t.Errorf("every other packet is 4 ms late: jitter %v", d)
	}
}

// FuzzReports feeds what a client may send.
func FuzzReports(f *testing.F) {
	b, _ := (&rtcp.ReceiverReport{Reports: []rtcp.ReceptionReport{{SSRC: 42, LastSenderReport: 1}}}).Marshal()
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		r, _ := newTestReports(t)
		r.handle(time.Unix(1_800_000_000, 0), b, 42)
		var st AudioStats
		if r.stats(&st); st.RoundTrip < 0 || st.RoundTrip >= time.Minute || st.JitterOut < 0 {
			t.Fatalf("%+v", st)
		}
	})
}
