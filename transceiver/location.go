package transceiver

import (
	"crypto/subtle"
	"net/url"
	"path"
	"strings"

	"github.com/usher-rtc/usher/ufrag"
)

// etag names the session's ICE generation (RFC 9725 section 4.3.1).
func (s *Session) etag() string {
	return `"` + url.PathEscape(s.Ufrag()) + `"`
}

// Location returns the path of the session's signalling resource below a
// base: base/ufrag-token. The ufrag, the session's first, carries the route,
// so that a proxy can find the Host (LocationRoute); the token makes the
// resource unguessable for those who see STUN on the wire.
func (s *Session) Location(base string) string {
	return strings.TrimSuffix(base, "/") + "/" + url.PathEscape(s.resource) + "-" + s.token
}

// splitLocation takes a Location's last element apart.
func splitLocation(u *url.URL) (resource, token string, ok bool) {
	last := path.Base(u.EscapedPath())
	i := strings.LastIndexByte(last, '-')
	if i < 0 {
		return "", "", false
	}
	resource, err := url.PathUnescape(last[:i])
	return resource, last[i+1:], err == nil
}

// LocationRoute returns the route to the Host of a Location, for a proxy in
// front of several Hosts: forward PATCH and DELETE to the signalling address of
// that Host. It returns the codec's error for a Location that is none of its.
func LocationRoute(codec ufrag.Codec, u *url.URL) (ufrag.Route, error) {
	resource, _, ok := splitLocation(u)
	if !ok {
		return ufrag.Route{}, ufrag.ErrLength
	}
	return codec.Decode([]byte(resource))
}

// mayBeLocation reports whether a path has the form of a call's, of this Host or not.
func mayBeLocation(u *url.URL) bool {
	_, _, ok := splitLocation(u)
	return ok
}

// isLocation tells the path of a call from the one that makes calls.
func (h *Host) isLocation(u *url.URL) bool {
	_, err := LocationRoute(h.cfg.Codec, u)
	return err == nil
}

// resource finds the session of a Location.
func (h *Host) resource(u *url.URL) *Session {
	name, token, ok := splitLocation(u)
	if !ok {
		return nil
	}
	h.mu.Lock()
	s := h.resources[name]
	h.mu.Unlock()
	if s == nil || s.ending.Load() || subtle.ConstantTimeCompare([]byte(token), []byte(s.token)) != 1 {
		return nil
	}
	return s
}
