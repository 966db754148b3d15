package transceiver

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/pion/webrtc/v4"

	"github.com/usher-rtc/usher/internal/config"
)

func (g *signalling) post(w http.ResponseWriter, r *http.Request) {
	offerSDP, metadata, p := g.readOffer(w, r)
	if p != nil {
		p.write(w)
		return
	}
	s, answer, p := g.accept(r, offerSDP, metadata)
	if p != nil {
		p.write(w)
		return
	}
	for _, l := range g.links {
		w.Header().Add("Link", l)
	}
	w.Header().Set("Location", s.Location(r.URL.Path))
	w.Header().Set("ETag", s.etag())
	w.Header().Set("Content-Type", typeSDP)
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, answer)
}

// accept makes a session of an offer that came with a request.
func (g *signalling) accept(r *http.Request, offerSDP string, metadata json.RawMessage) (*Session, string, *problem) {
	opts := AcceptOptions{Metadata: metadata, Ingresses: g.host.ingressesFor(r)}
	var prepareErr error
	if g.cfg.Prepare != nil {
		opts.Prepare = func(s *Session) error {
			prepareErr = g.cfg.Prepare(r, s)
			return prepareErr
		}
	}
	s, answer, err := g.host.Accept(r.Context(), offerSDP, opts)
	switch {
	case err == nil:
		return s, answer, nil
	case prepareErr != nil && errors.Is(err, prepareErr):
		return nil, "", problemOfHook(err, http.StatusForbidden)
	default:
		return nil, "", g.problemOf(err)
	}
}

// readOffer reads the two forms of a POST.
func (g *signalling) readOffer(w http.ResponseWriter, r *http.Request) (offerSDP string, metadata json.RawMessage, p *problem) {
	done := g.limitBody(w, r)
	defer func() { done(p) }()
	switch kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind {
	case typeSDP:
		offerSDP, p = readBody(r)
		return offerSDP, nil, p
	case typeForm:
		if err := r.ParseMultipartForm(g.cfg.MaxBody); err != nil {
			return "", nil, problemOfBody(err)
		}
		defer func() { _ = r.MultipartForm.RemoveAll() }()
		offerSDP, found := formField(r, "sdp")
		if !found {
			return "", nil, problemBad("the form needs a field sdp")
		}
		if session, found := formField(r, "session"); found && session != "" {
			metadata = json.RawMessage(session)
			if !validJSON(metadata) {
				return "", nil, problemBad("the field session has to be JSON")
			}
		}
		return offerSDP, metadata, nil
	default:
		return "", nil, problemContentType(typeSDP + " or " + typeForm)
	}
}

// formField returns a field that was sent as a value or as a file: FormData
// makes the latter of a Blob.
func formField(r *http.Request, name string) (string, bool) {
	if v := r.MultipartForm.Value[name]; len(v) > 0 {
		return v[0], true
	}
	files := r.MultipartForm.File[name]
	if len(files) == 0 {
		return "", false
	}
	f, err := files[0].Open()
	if err != nil {
		return "", false
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(f)
	return string(b), err == nil
}

func (g *signalling) patchBody(w http.ResponseWriter, r *http.Request) (body string, p *problem) {
	done := g.limitBody(w, r)
	defer func() { done(p) }()
	return readBody(r)
}

// limitBody bounds a request's body in length and in time: a server may have no
// limit of its own. The time counts until done is called with no problem. A
// ResponseWriter that knows no deadlines has none.
func (g *signalling) limitBody(w http.ResponseWriter, r *http.Request) (done func(*problem)) {
	r.Body = http.MaxBytesReader(w, r.Body, g.cfg.MaxBody)
	c := http.NewResponseController(w)
	_ = c.SetReadDeadline(time.Now().Add(g.bodyLimit))
	return func(p *problem) {
		// The server reads on: behind a whole body to notice a client that goes, for
		// which there is no limit; through what is left of another before it answers.
		if p == nil {
			_ = c.SetReadDeadline(time.Time{})
		}
	}
}

func readBody(r *http.Request) (string, *problem) {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return "", problemOfBody(err)
	}
	return string(b), nil
}

func problemOfBody(err error) *problem {
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		return problemTooLarge()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return newProblem(http.StatusRequestTimeout, "given-up", "Request given up", "the request's body did not come in time")
	}
	return problemBad("the request body cannot be read")
}

func (g *signalling) patch(w http.ResponseWriter, r *http.Request, s *Session) {
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if kind != typeSDP && kind != typeFragment {
		problemContentType(typeSDP + " or " + typeFragment).write(w)
		return
	}
	body, p := g.patchBody(w, r)
	match := ifMatch(tokens(r, "If-Match"))
	if p == nil && len(match) == 0 && kind == typeFragment {
		// RFC 9725 section 4.3.2 requires this answer even where candidates are not
		// needed: a whole offer is no part of the RFC and needs no precondition.
		p = newProblem(http.StatusPreconditionRequired, "precondition", "If-Match is missing",
			"send the newest ETag with candidates, * with an ICE restart; the call needs no candidates and goes on")
	}
	if p != nil {
		p.write(w)
		return
	}
	var answer, etag string
	var err error
	if kind == typeFragment {
		answer, etag, err = s.takeFragment(r.Context(), body, match)
	} else {
		answer, err = s.takeOffer(r.Context(), body, match, func(string, error) { etag = s.etag() })
	}
	switch {
	case err != nil:
		g.problemOf(err).write(w)
	case answer == "":
		w.WriteHeader(http.StatusNoContent)
	default:
		w.Header().Set("ETag", etag)
		w.Header().Set("Content-Type", kind)
		w.WriteHeader(http.StatusOK)
		_, _ = io.WriteString(w, answer)
	}
}

// ifMatch is a precondition (RFC 9725 section 4.3.1): what a client trickles is
// for one ICE generation, and a restart is for any, "*". An empty one always holds.
type ifMatch []string

// errStale is what a request gets whose precondition does not hold.
var errStale = errors.New("transceiver: If-Match does not match")

// holds compares with the entity-tag of now. It is called with the negotiation
// lock held: requests overlap, and a restart must not come between.
func (m ifMatch) holds(etag string) bool {
	return len(m) == 0 || slices.Contains(m, etag) || slices.ContainsFunc(m, func(t string) bool {
		return strings.Trim(t, `"`) == "*" // in quotes it is an entity-tag that nobody has, and a common mistake
	})
}

// iceLinks writes the Link headers of RFC 9725 section 4.6.
func iceLinks(servers []webrtc.ICEServer) (links []string, err error) {
	for i, s := range servers {
		field := fmt.Sprintf("ICEServers[%d]", i)
		password := ""
		switch c := s.Credential.(type) {
		case nil:
		case string:
			password = c
		default:
			return nil, config.Errorf(field+".Credential", "want a password, a string")
		}
		if strings.ContainsAny(s.Username+password, "\"\\") || oneLine(s.Username) != s.Username || oneLine(password) != password {
			return nil, config.Errorf(field, "quotes, backslashes and control characters cannot go into a header")
		}
		for _, raw := range s.URLs {
			u, err := url.Parse(raw)
			if err != nil || !slices.Contains([]string{"stun", "stuns", "turn", "turns"}, u.Scheme) || strings.ContainsAny(raw, "<> ") {
				return nil, config.Errorf(field+".URLs", "%q is no stun: or turn: URL", raw)
			}
			link := "<" + raw + `>; rel="ice-server"`
			if s.Username != "" || password != "" {
				link += fmt.Sprintf(`; username="%s"; credential="%s"; credential-type="password"`, s.Username, password)
			}
			links = append(links, link)
		}
	}
	return links, nil
}
