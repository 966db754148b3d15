package transceiver

import (
	"context"
	"strings"
)

// parseFragment reads the credentials out of an SDP fragment (RFC 8840
// section 9). Everything else in it says where the client may be, which its
// checks say better.
func parseFragment(body string) (remoteUfrag, remotePassword string, err error) {
	for line := range strings.Lines(body) {
		line = strings.TrimRight(line, "\r\n")
		if v, ok := strings.CutPrefix(line, "a=ice-ufrag:"); ok && remoteUfrag == "" {
			remoteUfrag = strings.TrimSpace(v)
		}
		if v, ok := strings.CutPrefix(line, "a=ice-pwd:"); ok && remotePassword == "" {
			remotePassword = strings.TrimSpace(v)
		}
	}
	if !iceString(remoteUfrag, minUfrag) || !iceString(remotePassword, minPwd) {
		return "", "", badOffer(ErrNoICE, "the fragment needs a=ice-ufrag and a=ice-pwd")
	}
	return remoteUfrag, remotePassword, nil
}

// takeFragment takes a client's fragment (RFC 9725 section 4.3). Candidates
// alone change nothing, and the answer is empty; new credentials restart ICE,
// and the Host's fragment is the answer. It returns the entity-tag that is valid
// with it.
func (s *Session) takeFragment(ctx context.Context, body string, match ifMatch) (answer, etag string, err error) {
	remoteUfrag, remotePassword, err := parseFragment(body)
	if err != nil {
		return "", "", err
	}
	s.negotiation.Lock()
	defer s.negotiation.Unlock()
	switch {
	case s.ending.Load():
		return "", "", s.Err()
	case ctx.Err() != nil:
		return "", "", ctx.Err()
	case !match.holds(s.etag()):
		return "", "", errStale
	}
	ice, err := s.credentialsFor(remoteUfrag, remotePassword)
	if err != nil || ice == s.ice {
		return "", "", err
	}
	ingresses := s.nextIngresses(ice)
	s.supersede()
	s.negotiated(ice, ingresses, false)
	var b strings.Builder
	b.WriteString("a=ice-lite\r\n")
	b.WriteString("a=ice-ufrag:" + ice.ufrag + "\r\n")
	b.WriteString("a=ice-pwd:" + ice.password + "\r\n")
	if mid := s.taggedMid(); mid != "" {
		b.WriteString("m=audio 9 UDP/TLS/RTP/SAVPF 0\r\na=mid:" + mid + "\r\n")
	}
	for i, in := range ingresses {
		b.WriteString("a=candidate:" + candidate(i, in) + "\r\n")
	}
	b.WriteString("a=end-of-candidates\r\n")
	return b.String(), s.etag(), nil
}

// taggedMid returns the mid of the section that carries the transport.
func (s *Session) taggedMid() string {
	local := s.pc.CurrentLocalDescription()
	if local == nil {
		return ""
	}
	for line := range strings.Lines(local.SDP) {
		if v, ok := strings.CutPrefix(strings.TrimRight(line, "\r\n"), "a=mid:"); ok {
			return v
		}
	}
	return ""
}
