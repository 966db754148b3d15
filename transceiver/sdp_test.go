package transceiver

import (
	"errors"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/pion/sdp/v3"
)

const testPrint = "AB:CD:EF:01:23:45:67:89:AB:CD:EF:01:23:45:67:89:AB:CD:EF:01:23:45:67:89:AB:CD:EF:01:23:45:67:89"

// browserOffer has what a browser sends before it has gathered anything.
func browserOffer() string {
	lines := []string{
		"v=0",
		"o=- 4611731400430051336 2 IN IP4 127.0.0.1",
		"s=-",
		"t=0 0",
		"a=group:BUNDLE 0 1",
		"a=extmap-allow-mixed",
		"a=msid-semantic: WMS",
		"m=audio 9 UDP/TLS/RTP/SAVPF 111 0",
		"c=IN IP4 0.0.0.0",
		"a=rtcp:9 IN IP4 0.0.0.0",
		"a=ice-ufrag:Ab+/",
		"a=ice-pwd:0123456789abcdefghijkl",
		"a=ice-options:trickle",
		"a=fingerprint:sha-256 " + testPrint,
		"a=setup:actpass",
		"a=mid:0",
		"a=sendrecv",
		"a=rtcp-mux",
		"a=rtpmap:111 opus/48000/2",
		"a=fmtp:111 minptime=10;useinbandfec=1",
		"a=rtpmap:0 PCMU/8000",
		"m=application 9 UDP/DTLS/SCTP webrtc-datachannel",
		"c=IN IP4 0.0.0.0",
		"a=ice-ufrag:Ab+/",
		"a=ice-pwd:0123456789abcdefghijkl",
		"a=ice-options:trickle",
		"a=fingerprint:sha-256 " + testPrint,
		"a=setup:actpass",
		"a=mid:1",
		"a=sctp-port:5000",
		"a=max-message-size:262144",
		"",
	}
	return strings.Join(lines, "\r\n")
}

// edit replaces text in the browser's offer and insists that it was there.
func edit(t *testing.T, pairs ...string) string {
	t.Helper()
	s := browserOffer()
	for i := 0; i < len(pairs); i += 2 {
		if !strings.Contains(s, pairs[i]) {
			t.Fatalf("the offer has no %q", pairs[i])
		}
		s = strings.ReplaceAll(s, pairs[i], pairs[i+1])
	}
	return s
}

func TestBadOffers(t *testing.T) {
	second := "m=application"
	for name, c := range map[string]struct {
		offer string
		want  error
	}{
		"empty":                {"", ErrNotSDP},
		"json":                 {`{"type":"offer"}`, ErrNotSDP},
		"cut short":            {browserOffer()[:20], ErrNotSDP},
		"too large":            {browserOffer() + strings.Repeat("a=x\r\n", 20000), ErrOfferTooLarge},
		"too many sections":    {browserOffer() + strings.Repeat("m=video 9 UDP/TLS/RTP/SAVPF 96\r\na=rtpmap:96 VP8/90000\r\n", 64), ErrOfferTooLarge},
		"too many formats":     {edit(t, "SAVPF 111 0", "SAVPF 111 0"+strings.Repeat(" 1", maxFormats)), ErrOfferTooLarge},
		"too many attributes":  {edit(t, "a=mid:0", strings.Repeat("a=ssrc:1 a\r\n", maxSectionAttributes)+"a=mid:0"), ErrOfferTooLarge},
		"too many in all":      {edit(t, "a=extmap-allow-mixed", strings.Repeat("a=group:LS\r\n", maxAttributes)+"a=x"), ErrOfferTooLarge},
		"too long parameters":  {edit(t, "minptime=10", strings.Repeat("a=1;", maxParameters/4)+"minptime=10"), ErrOfferTooLarge},
		"too large a bundle":   {edit(t, "BUNDLE 0 1", "BUNDLE"+strings.Repeat(" a", maxSections)+" 0 1"), ErrOfferTooLarge},
		"no media":             {browserOffer()[:strings.Index(browserOffer(), "m=audio")], ErrNoMedia},
		"all rejected":         {edit(t, "m=audio 9", "m=audio 0", "m=application 9", "m=application 0"), ErrNoMedia},
		"no bundle":            {edit(t, "a=group:BUNDLE 0 1\r\n", ""), ErrNoBundle},
		"partly bundled":       {edit(t, "BUNDLE 0 1", "BUNDLE 0"), ErrNoBundle},
		"bundle of nothing":    {edit(t, "BUNDLE 0 1", "BUNDLE"), ErrNoBundle},
		"no mid":               {edit(t, "a=mid:1\r\n", ""), ErrNoBundle},
		"mid twice":            {edit(t, "a=mid:1", "a=mid:0"), ErrNotSDP},
		"no fingerprint":       {edit(t, "a=fingerprint:sha-256 "+testPrint+"\r\n", ""), ErrNoFingerprint},
		"weak fingerprint":     {edit(t, "sha-256", "sha-1"), ErrNoFingerprint},
		"broken fingerprint":   {edit(t, testPrint, testPrint[:95-3]), ErrNoFingerprint},
		"fingerprint not hex":  {edit(t, "AB:CD", "XB:CD"), ErrNoFingerprint},
		"no ufrag":             {edit(t, "a=ice-ufrag:Ab+/\r\n", ""), ErrNoICE},
		"short ufrag":          {edit(t, "a=ice-ufrag:Ab+/", "a=ice-ufrag:Ab+"), ErrNoICE},
		"ufrag with a colon":   {edit(t, "a=ice-ufrag:Ab+/", "a=ice-ufrag:Ab:/"), ErrNoICE},
		"no password":          {edit(t, "a=ice-pwd:0123456789abcdefghijkl\r\n", ""), ErrNoICE},
		"short password":       {edit(t, "ice-pwd:0123456789abcdefghijkl", "ice-pwd:0123456789abcdefghijk"), ErrNoICE},
		"unknown setup":        {edit(t, "setup:actpass", "setup:holdconn"), ErrNotSDP},
		"second section alone": {edit(t, "BUNDLE 0 1", "BUNDLE 1", second, second), ErrNoBundle},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parseOffer(c.offer, 64<<10)
			var oe *OfferError
			if !errors.Is(err, c.want) || !errors.As(err, &oe) {
				t.Fatalf("got %v, want %v", err, c.want)
			}
			if strings.ContainsAny(err.Error(), "\r\n") {
				t.Errorf("%q is more than one line", err)
			}
		})
	}
}

// TestLargestOffer: pages with many sections, and sections with many codecs, are
// far from the limits.
func TestLargestOffer(t *testing.T) {
	begin, section, _ := strings.Cut(browserOffer()[:strings.Index(browserOffer(), "m=application")], "m=audio")
	section = "m=audio" + section
	var tags, all strings.Builder
	for i := range maxSections {
		mid := strconv.Itoa(i)
		tags.WriteString(" " + mid)
		more := strings.Repeat("a=ssrc:1 cname:a\r\n", 40)
		if i == 0 {
			more = strings.Repeat("a=rtcp-fb:111 nack\r\n", 400)
		}
		all.WriteString(strings.Replace(section, "a=mid:0\r\n", "a=mid:"+mid+"\r\n"+more, 1))
	}
	o, err := parseOffer(strings.Replace(begin, " 0 1", tags.String(), 1)+all.String(), 256<<10)
	if err != nil || !o.audio {
		t.Fatal(err)
	}
}

// C93.
func TestOfferTransport(t *testing.T) {
	long := "sha-512 " + testPrint + ":" + testPrint
	for name, c := range map[string]struct {
		offer string
		check func(o *offer) bool
	}{
		"plain": {browserOffer(), func(o *offer) bool {
			return o.ufrag == "Ab+/" && o.password == "0123456789abcdefghijkl" && o.fingerprint == "sha-256 "+testPrint && o.setup == "actpass" && o.audio
		}},
		"lower case fingerprint": {edit(t, testPrint, strings.ToLower(testPrint)), func(o *offer) bool { return o.fingerprint == "sha-256 "+testPrint }},
		"strongest fingerprint":  {edit(t, "a=setup:actpass", "a=setup:actpass\r\na=fingerprint:"+long), func(o *offer) bool { return o.fingerprint == long }},
		"bundled section with another ufrag": {
			strings.Replace(browserOffer(), "m=application 9 UDP/DTLS/SCTP webrtc-datachannel\r\nc=IN IP4 0.0.0.0\r\na=ice-ufrag:Ab+/", "m=application 9 UDP/DTLS/SCTP webrtc-datachannel\r\na=ice-ufrag:Other", 1),
			func(o *offer) bool { return o.ufrag == "Ab+/" },
		},
		"first section rejected": {
			edit(t, "m=audio 9", "m=audio 0", "BUNDLE 0 1", "BUNDLE 1"),
			func(o *offer) bool { return !o.audio && o.ufrag == "Ab+/" },
		},
		"bundle-only": {
			edit(t, "m=application 9", "m=application 0", "a=sctp-port", "a=bundle-only\r\na=sctp-port"),
			func(o *offer) bool { return o.audio },
		},
		"tag is the second section": {
			strings.Replace(edit(t, "BUNDLE 0 1", "BUNDLE 1 0"), "a=ice-ufrag:Ab+/", "a=ice-ufrag:Other", 1),
			func(o *offer) bool { return o.ufrag == "Ab+/" },
		},
		"session level": {
			edit(t, "a=ice-ufrag:Ab+/\r\n", "", "a=extmap-allow-mixed", "a=ice-ufrag:Ab+/"),
			func(o *offer) bool { return o.ufrag == "Ab+/" },
		},
		"no setup": {edit(t, "a=setup:actpass\r\n", ""), func(o *offer) bool { return o.setup == "actpass" }},
	} {
		t.Run(name, func(t *testing.T) {
			o, err := parseOffer(c.offer, 64<<10)
			if err != nil {
				t.Fatal(err)
			}
			if !c.check(o) {
				t.Errorf("%+v", o)
			}
		})
	}
}

// C95, C97.
func TestOfferForPionNamesNoAddress(t *testing.T) {
	raw := edit(t,
		"a=mid:0", "a=mid:0\r\na=candidate:1 1 udp 2122260223 203.0.113.7 5000 typ host\r\na=candidate:2 1 udp 1 0c1d.local 5000 typ host\r\na=end-of-candidates\r\na=remote-candidates:1 203.0.113.7 5",
		"a=extmap-allow-mixed", "a=ice-lite",
		"c=IN IP4 0.0.0.0", "c=IN IP4 203.0.113.7")
	o, err := parseOffer(raw, 64<<10)
	if err != nil {
		t.Fatal(err)
	}
	got, err := o.forPion("firstUfrag", "firstPassword")
	if err != nil {
		t.Fatal(err)
	}
	for _, gone := range []string{"203.0.113.7", ".local", "ice-lite", "trickle", "end-of-candidates", "Ab+/"} {
		if strings.Contains(got, gone) {
			t.Errorf("%q is still in the offer for Pion", gone)
		}
	}
	if n := strings.Count(got, "a=ice-ufrag:firstUfrag\r\n"); n != 2 {
		t.Errorf("%d sections with the first ufrag, want 2\n%s", n, got)
	}
}

// C62, C103.
func TestAnswerAdvertisesExactlyTheIngresses(t *testing.T) {
	ingresses := []Ingress{
		{ID: 1, Advertise: netip.MustParseAddrPort("203.0.113.10:3478")},
		{ID: 2, Advertise: netip.MustParseAddrPort("[2001:db8::10]:3479")},
		{ID: 3, Advertise: netip.MustParseAddrPort("203.0.113.11:3480")},
		{ID: 4, Advertise: netip.MustParseAddrPort("[2001:db8::11]:3481")},
	}
	pion := edit(t,
		"a=mid:0", "a=mid:0\r\na=candidate:1 1 udp 2122260223 192.0.2.2 9 typ host\r\na=candidate:1 2 udp 2122260222 192.0.2.2 9 typ host\r\na=end-of-candidates",
		"setup:actpass", "setup:active") + "m=video 0 UDP/TLS/RTP/SAVPF 96\r\nc=IN IP4 0.0.0.0\r\na=mid:2\r\n"
	got, err := forClient(pion, "routed", "derived", ingresses)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"a=candidate:1 1 udp 2130706431 203.0.113.10 3478 typ host",
		"a=candidate:2 1 udp 2130706175 2001:db8::10 3479 typ host",
		"a=candidate:3 1 udp 2130705919 203.0.113.11 3480 typ host",
		"a=candidate:4 1 udp 2130705663 2001:db8::11 3481 typ host",
	}
	if c := sdpLines(got, "a=candidate:"); strings.Join(c, "\n") != strings.Join(want, "\n") {
		t.Errorf("candidates:\n%s", strings.Join(c, "\n"))
	}
	for line, n := range map[string]int{
		"a=ice-lite": 1, "a=end-of-candidates": 1, "a=ice-ufrag:routed": 2, "a=ice-pwd:derived": 2,
		"a=setup:active": 2, "c=IN IP4 203.0.113.10": 2, "a=group:BUNDLE 0 1": 1, "a=ice-options": 0, "a=rtcp:": 0,
		"m=audio 3478 ": 1, "m=application 3478 ": 1, "m=video 0 ": 1, "c=IN IP4 0.0.0.0": 1,
	} {
		if c := sdpLines(got, line); len(c) != n {
			t.Errorf("%d lines %q, want %d\n%s", len(c), line, n, got)
		}
	}
	v6, err := forClient(pion, "routed", "derived", ingresses[1:2])
	if err != nil {
		t.Fatal(err)
	}
	if len(sdpLines(v6, "c=IN IP6 2001:db8::10")) != 2 {
		t.Errorf("no IPv6 address in c=\n%s", v6)
	}
}

func TestAnswerWithNothingAcceptedIsAnError(t *testing.T) {
	_, err := forClient(edit(t, "m=audio 9", "m=audio 0", "m=application 9", "m=application 0"), "u", "p",
		[]Ingress{{ID: 1, Advertise: netip.MustParseAddrPort("203.0.113.10:3478")}})
	if !errors.Is(err, ErrUnsupported) {
		t.Errorf("got %v", err)
	}
}

// FuzzOffer checks that whatever is accepted is safe to hand to Pion: it parses,
// has the given credentials only, and names no address.
func FuzzOffer(f *testing.F) {
	f.Add(browserOffer())
	f.Add(strings.ReplaceAll(browserOffer(), "\r\n", "\n"))
	f.Add(strings.ReplaceAll(browserOffer(), "m=audio 9", "m=audio 0"))
	f.Fuzz(func(t *testing.T, raw string) {
		o, err := parseOffer(raw, 64<<10)
		if err != nil {
			var oe *OfferError
			if !errors.As(err, &oe) || strings.ContainsAny(err.Error(), "\r\n") {
				t.Fatalf("%q", err)
			}
			return
		}
		out, err := o.forPion("uuuu", "pppppppppppppppppppppp")
		if err != nil {
			return
		}
		d := &sdp.SessionDescription{}
		if err := d.UnmarshalString(out); err != nil {
			t.Fatalf("what is given to Pion does not parse: %v", err)
		}
		for _, m := range d.MediaDescriptions {
			if v, _ := m.Attribute("ice-ufrag"); v != "uuuu" {
				t.Fatalf("ufrag %q", v)
			}
			for _, a := range m.Attributes {
				if a.Key == "candidate" || a.Key == "ice-lite" {
					t.Fatalf("a=%s is left", a.Key)
				}
			}
		}
	})
}
