package transceiver

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pion/sdp/v3"
)

// The kinds of bad offer. An error from Accept and Renegotiate that is the
// offer's fault is an *OfferError that wraps one of these.
var (
	ErrOfferTooLarge   = errors.New("offer too large")
	ErrNotSDP          = errors.New("not an SDP offer")
	ErrNoMedia         = errors.New("no media section")
	ErrNoBundle        = errors.New("media sections are not bundled")
	ErrNoFingerprint   = errors.New("no DTLS fingerprint")
	ErrNoICE           = errors.New("no usable ice-ufrag and ice-pwd")
	ErrNoAudio         = errors.New("no audio section")
	ErrChangedIdentity = errors.New("the DTLS fingerprint is another than before")
	ErrUnsupported     = errors.New("offer cannot be answered")
)

// OfferError says why an offer is refused. It unwraps to one of the Err values above.
type OfferError struct {
	// Err is the kind.
	Err error
	// Detail is more about it, for a log line or the client's developer. May be empty.
	Detail string
}

// Error implements the error interface. It is one line.
func (e *OfferError) Error() string {
	if e.Detail == "" {
		return e.Err.Error()
	}
	return e.Err.Error() + ": " + e.Detail
}

// Unwrap returns the kind.
func (e *OfferError) Unwrap() error { return e.Err }

func badOffer(kind error, format string, args ...any) error {
	return &OfferError{Err: kind, Detail: oneLine(fmt.Sprintf(format, args...))}
}

// oneLine keeps a client's own bytes from breaking a log or a header.
func oneLine(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
	if len(s) > 200 {
		s = strings.ToValidUTF8(s[:200], "") + "..."
	}
	return s
}

const (
	// maxSections bounds the transceivers that one offer can make. Pages that
	// add and remove tracks for hours stay far below it: sections are reused.
	maxSections = 64
	// maxFormats are the codecs of a section: RTP has 128 payload types.
	maxFormats = 128
	// Pion compares many lines of an offer with each other, so the time that it
	// takes grows with the square of their number. Browsers have about 200 lines in
	// a section with all their video codecs, and 30 in one of audio.
	maxSectionAttributes, maxAttributes = 512, 4096
	// maxParameters is the longest a=fmtp, in bytes.
	maxParameters = 4096
	// RFC 8839 section 5.4, lengths of ice-ufrag and ice-pwd.
	minUfrag, minPwd, maxICE = 4, 22, 256

	setupActive  = "active"
	setupPassive = "passive"
	setupActpass = "actpass"
)

// iceAttributes and others that never reach Pion: where the client is comes
// from its authenticated checks only.
var strippedFromOffer = []string{
	"candidate", "end-of-candidates", "remote-candidates", "ice-lite", "ice-options", "ice-mismatch", "ice-pacing",
	"ice-ufrag", "ice-pwd", "fingerprint", "setup", "rtcp",
}

// offer is what the Host needs to know of a client's offer, or of its answer.
type offer struct {
	desc            *sdp.SessionDescription
	ufrag, password string
	fingerprint     string // "sha-256 AB:CD…", upper case
	setup           string
	audio           bool
}

// identity is what is remembered of a session's first offer: who the client is.
type identity struct{ ufrag, password, fingerprint string }

// identity returns copies, since the offer's strings keep the whole SDP alive.
func (o *offer) identity() identity {
	return identity{strings.Clone(o.ufrag), strings.Clone(o.password), strings.Clone(o.fingerprint)}
}

// live reports whether a section takes part: port 0 means rejected, unless it
// is bundle-only (RFC 9143 section 6).
func live(m *sdp.MediaDescription) bool {
	if m.MediaName.Port.Value != 0 {
		return true
	}
	_, only := m.Attribute("bundle-only")
	return only
}

// parseOffer reads an offer and refuses what could not work later.
func parseOffer(raw string, maxBytes int) (*offer, error) {
	if len(raw) > maxBytes {
		return nil, badOffer(ErrOfferTooLarge, "%d bytes, at most %d", len(raw), maxBytes)
	}
	if !strings.HasPrefix(raw, "v=0") {
		return nil, badOffer(ErrNotSDP, "does not begin with v=0")
	}
	desc := &sdp.SessionDescription{}
	if err := desc.UnmarshalString(raw); err != nil {
		return nil, badOffer(ErrNotSDP, "%v", err)
	}
	if err := checkSize(desc); err != nil {
		return nil, err
	}
	o := &offer{desc: desc}
	var sections []*sdp.MediaDescription
	mids := map[string]bool{}
	for _, m := range desc.MediaDescriptions {
		mid, ok := m.Attribute("mid")
		if ok && (mid == "" || mids[mid]) {
			return nil, badOffer(ErrNotSDP, "mid %q is empty or given twice", mid)
		}
		mids[mid] = ok
		if !live(m) {
			continue
		}
		if !ok {
			return nil, badOffer(ErrNoBundle, "a media section has no mid")
		}
		sections = append(sections, m)
		o.audio = o.audio || m.MediaName.Media == "audio"
	}
	if len(sections) == 0 {
		return nil, badOffer(ErrNoMedia, "")
	}
	sections, err := bundled(desc, sections)
	if err != nil {
		return nil, err
	}
	return o, o.readTransport(sections[0])
}

// checkSize refuses what would take long to answer.
func checkSize(desc *sdp.SessionDescription) error {
	if n := len(desc.MediaDescriptions); n > maxSections {
		return badOffer(ErrOfferTooLarge, "%d media sections, at most %d", n, maxSections)
	}
	total := len(desc.Attributes)
	for i, m := range desc.MediaDescriptions {
		formats, attributes := len(m.MediaName.Formats), len(m.Attributes)
		total += attributes
		switch {
		case formats > maxFormats:
			return badOffer(ErrOfferTooLarge, "%d formats in section %d, at most %d", formats, i, maxFormats)
		case attributes > maxSectionAttributes:
			return badOffer(ErrOfferTooLarge, "%d attributes in section %d, at most %d", attributes, i, maxSectionAttributes)
		}
		for _, a := range m.Attributes {
			if a.Key == "fmtp" && len(a.Value) > maxParameters {
				return badOffer(ErrOfferTooLarge, "an a=fmtp of %d bytes in section %d, at most %d", len(a.Value), i, maxParameters)
			}
		}
	}
	if total > maxAttributes {
		return badOffer(ErrOfferTooLarge, "%d attributes, at most %d", total, maxAttributes)
	}
	return nil
}

// bundled checks that all live sections share one transport and puts the
// tagged one, which carries the transport's attributes, first.
func bundled(desc *sdp.SessionDescription, sections []*sdp.MediaDescription) ([]*sdp.MediaDescription, error) {
	var groups [][]string
	for _, a := range desc.Attributes {
		if fields := strings.Fields(a.Value); a.Key == "group" && len(fields) > 0 && fields[0] == "BUNDLE" {
			groups = append(groups, fields[1:])
		}
	}
	if len(groups) == 0 {
		if len(sections) == 1 {
			return sections, nil
		}
		return nil, badOffer(ErrNoBundle, "%d media sections and no a=group:BUNDLE", len(sections))
	}
	if n := len(groups[0]); n > maxSections {
		return nil, badOffer(ErrOfferTooLarge, "a BUNDLE group of %d, at most %d", n, maxSections)
	}
	for _, m := range sections {
		if mid, _ := m.Attribute("mid"); !slices.Contains(groups[0], mid) {
			return nil, badOffer(ErrNoBundle, "section %q is not in the first BUNDLE group", mid)
		}
	}
	for _, tag := range groups[0] {
		for _, m := range sections {
			if mid, _ := m.Attribute("mid"); mid == tag {
				return append([]*sdp.MediaDescription{m}, sections...), nil
			}
		}
	}
	return nil, badOffer(ErrNoBundle, "the BUNDLE group names no live section")
}

// readTransport takes credentials, fingerprint and setup of the tagged
// section; what other sections say about them does not count.
func (o *offer) readTransport(m *sdp.MediaDescription) error {
	attr := func(key string) string {
		if v, ok := m.Attribute(key); ok {
			return strings.TrimSpace(v)
		}
		v, _ := o.desc.Attribute(key)
		return strings.TrimSpace(v)
	}
	o.ufrag, o.password = attr("ice-ufrag"), attr("ice-pwd")
	switch {
	case o.ufrag == "":
		return badOffer(ErrNoICE, "no a=ice-ufrag")
	case o.password == "":
		return badOffer(ErrNoICE, "no a=ice-pwd")
	case !iceString(o.ufrag, minUfrag):
		return badOffer(ErrNoICE, "a=ice-ufrag needs 4 to 256 ice-chars")
	case !iceString(o.password, minPwd):
		return badOffer(ErrNoICE, "a=ice-pwd needs 22 to 256 ice-chars")
	}
	var prints []string
	for _, attributes := range [][]sdp.Attribute{m.Attributes, o.desc.Attributes} {
		for _, a := range attributes {
			if a.Key == "fingerprint" {
				prints = append(prints, a.Value)
			}
		}
		if len(prints) > 0 {
			break
		}
	}
	var err error
	if o.fingerprint, err = pickFingerprint(prints); err != nil {
		return err
	}
	switch o.setup = strings.ToLower(attr("setup")); o.setup {
	case setupActive, setupPassive, setupActpass:
	case "":
		o.setup = setupActpass // RFC 5763: an offer without it is read as one that takes either role
	default:
		return badOffer(ErrNotSDP, "a=setup:%s", o.setup)
	}
	return nil
}

// iceString checks the characters and the length, RFC 8839 section 5.4.
func iceString(s string, least int) bool {
	if len(s) < least || len(s) > maxICE {
		return false
	}
	for _, c := range []byte(s) {
		switch {
		case c >= '0' && c <= '9', c >= 'A' && c <= 'Z', c >= 'a' && c <= 'z', c == '+', c == '/':
		default:
			return false
		}
	}
	return true
}

// fingerprintSizes are the hashes that are accepted, in bytes. SHA-1 and MD5
// are not: they no longer bind a certificate.
var fingerprintSizes = map[string]int{"sha-256": 32, "sha-384": 48, "sha-512": 64}

// pickFingerprint takes the strongest of several fingerprints (RFC 8122
// section 5): Pion wants exactly one.
func pickFingerprint(prints []string) (string, error) {
	if len(prints) == 0 {
		return "", badOffer(ErrNoFingerprint, "")
	}
	best, size := "", 0
	for _, p := range prints {
		hash, hex, _ := strings.Cut(strings.TrimSpace(p), " ")
		hash, hex = strings.ToLower(hash), strings.ToUpper(strings.TrimSpace(hex))
		if n := fingerprintSizes[hash]; n > size && hexPairs(hex, n) {
			best, size = hash+" "+hex, n
		}
	}
	if best == "" {
		return "", badOffer(ErrNoFingerprint, "none of %d is a well-formed sha-256, sha-384 or sha-512", len(prints))
	}
	return best, nil
}

func hexPairs(s string, n int) bool {
	if len(s) != 3*n-1 {
		return false
	}
	for i, c := range []byte(s) {
		switch {
		case i%3 == 2:
			if c != ':' {
				return false
			}
		case c >= '0' && c <= '9', c >= 'A' && c <= 'F':
		default:
			return false
		}
	}
	return true
}

// completeFrom checks that the sections of an answer are those of Pion's offer,
// in its order (RFC 3264 section 6). A rejected one may leave out everything
// else: it gets the offer's mid and codecs, since Pion takes the codecs of the
// first section of a kind for the session's, rejected or not.
func (o *offer) completeFrom(raw string) error {
	pion := &sdp.SessionDescription{}
	if err := pion.UnmarshalString(raw); err != nil {
		return fmt.Errorf("transceiver: Pion's offer does not parse: %w", err)
	}
	if got, want := len(o.desc.MediaDescriptions), len(pion.MediaDescriptions); got != want {
		return badOffer(ErrNotSDP, "the answer has %d media sections, the offer %d", got, want)
	}
	for i, m := range o.desc.MediaDescriptions {
		offered := pion.MediaDescriptions[i]
		want, _ := offered.Attribute("mid")
		mid, ok := m.Attribute("mid")
		if ok && mid != want || m.MediaName.Media != offered.MediaName.Media {
			return badOffer(ErrNotSDP, "section %d of the answer is %s %q, of the offer %s %q", i, m.MediaName.Media, mid, offered.MediaName.Media, want)
		}
		if live(m) {
			continue
		}
		m.MediaName.Formats = offered.MediaName.Formats
		m.Attributes = []sdp.Attribute{{Key: "mid", Value: want}}
		for _, a := range offered.Attributes {
			if slices.Contains([]string{"rtpmap", "fmtp", "rtcp-fb", "rtcp-mux"}, a.Key) {
				m.Attributes = append(m.Attributes, a)
			}
		}
	}
	return nil
}

// rejected returns the mids of the sections that do not take part.
func (o *offer) rejected() (mids []string) {
	for _, m := range o.desc.MediaDescriptions {
		if mid, _ := m.Attribute("mid"); !live(m) {
			mids = append(mids, mid)
		}
	}
	return mids
}

// forPion writes the offer for Pion with the given remote credentials: those
// of the session's first offer, so that Pion never sees an ICE restart.
func (o *offer) forPion(ufrag, password string) (string, error) {
	d := o.desc
	d.Attributes = strip(d.Attributes, strippedFromOffer)
	for i, m := range d.MediaDescriptions {
		m.Attributes = strip(m.Attributes, strippedFromOffer)
		m.ConnectionInformation = placeholder()
		if _, ok := m.Attribute("mid"); !ok {
			// A rejected section may come without one, and Pion wants one.
			m.WithValueAttribute("mid", "rejected-"+strconv.Itoa(i))
		}
		if !live(m) {
			// An inactive transceiver is stopped at once and answered with port 0.
			m.Attributes = strip(m.Attributes, []string{"sendrecv", "sendonly", "recvonly", "inactive"})
			m.WithPropertyAttribute("inactive")
		}
		m.WithValueAttribute("ice-ufrag", ufrag)
		m.WithValueAttribute("ice-pwd", password)
		m.WithValueAttribute("setup", o.setup)
		m.WithValueAttribute("fingerprint", o.fingerprint)
	}
	b, err := d.Marshal()
	if err != nil {
		return "", badOffer(ErrNotSDP, "%v", err)
	}
	return string(b), nil
}

// placeholder is the address that means nothing (RFC 8840 section 4.1.1);
// every c= line is read as that, so no address in an offer means "on hold".
func placeholder() *sdp.ConnectionInformation {
	return &sdp.ConnectionInformation{NetworkType: "IN", AddressType: "IP4", Address: &sdp.Address{Address: "0.0.0.0"}}
}

func strip(attributes []sdp.Attribute, keys []string) []sdp.Attribute {
	return slices.DeleteFunc(attributes, func(a sdp.Attribute) bool { return slices.Contains(keys, a.Key) })
}

var strippedForClient = []string{
	"candidate", "end-of-candidates", "ice-lite", "ice-options", "ice-ufrag", "ice-pwd", "rtcp",
}

// forClient turns Pion's answer or offer into the one for the client: routed
// credentials, and the ingresses as the only candidates.
func forClient(raw, ufrag, password string, ingresses []Ingress) (string, error) {
	d := &sdp.SessionDescription{}
	if err := d.UnmarshalString(raw); err != nil {
		return "", fmt.Errorf("transceiver: Pion's description does not parse: %w", err)
	}
	d.Attributes = strip(d.Attributes, strippedForClient)
	d.Attributes = append(d.Attributes, sdp.Attribute{Key: "ice-lite"})
	d.ConnectionInformation = nil
	tagged := false
	for _, m := range d.MediaDescriptions {
		m.Attributes = strip(m.Attributes, strippedForClient)
		if m.MediaName.Port.Value == 0 {
			m.ConnectionInformation = placeholder()
			continue
		}
		first := ingresses[0].Advertise
		family := "IP4"
		if first.Addr().Is6() && !first.Addr().Is4In6() {
			family = "IP6"
		}
		m.MediaName.Port = sdp.RangedPort{Value: int(first.Port())}
		m.ConnectionInformation = &sdp.ConnectionInformation{
			NetworkType: "IN", AddressType: family,
			Address: &sdp.Address{Address: first.Addr().Unmap().String()},
		}
		m.WithValueAttribute("ice-ufrag", ufrag)
		m.WithValueAttribute("ice-pwd", password)
		if tagged {
			continue // BUNDLE: the other sections use the first one's transport
		}
		tagged = true
		for i, in := range ingresses {
			m.WithValueAttribute("candidate", candidate(i, in))
		}
		m.WithPropertyAttribute("end-of-candidates")
	}
	if !tagged {
		return "", badOffer(ErrUnsupported, "no media section is left that could be accepted")
	}
	b, err := d.Marshal()
	return string(b), err
}

// candidate writes RFC 8839 section 5.1 for ingress number i: a host
// candidate, component 1, with priorities in the order of preference.
func candidate(i int, in Ingress) string {
	const hostPreference = 126 // RFC 8445 section 5.1.2.2
	priority := uint32(hostPreference)<<24 | uint32(0xffff-i)<<8 | 255
	return fmt.Sprintf("%d 1 udp %d %s %d typ host", i+1, priority, in.Advertise.Addr().Unmap(), in.Advertise.Port())
}
