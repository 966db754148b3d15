package transceiver

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	typeProblem = "application/problem+json"
	// problemBase is where each kind of problem is described, under its name.
	problemBase = "https://github.com/usher-rtc/usher/blob/main/docs/signalling.md#"
	// retryAfter is what a client that was refused for want of room is told to
	// wait. A balancer may send it to another replica at once.
	retryAfter = 2 * time.Second
)

// problem is what signalling answers an error with (RFC 9457): the body of an
// HTTP response, or part of an error message on a WebSocket.
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
	// RetryAfter is in seconds, the header's value.
	RetryAfter int `json:"retry_after,omitempty"`
}

// newProblem makes one of the kinds in docs/signalling.md. Detail says what to do.
func newProblem(status int, name, title, detail string) *problem {
	return &problem{Type: problemBase + name, Title: title, Status: status, Detail: oneLine(detail)}
}

func (p *problem) after(d time.Duration) *problem {
	p.RetryAfter = max(1, int(math.Ceil(d.Seconds())))
	return p
}

// write answers a request with the problem.
func (p *problem) write(w http.ResponseWriter) {
	h := w.Header()
	if p.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(p.RetryAfter))
	}
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Type", typeProblem)
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p)
}

// The problems that have no error of their own behind them.
func problemOrigin() *problem {
	return newProblem(http.StatusForbidden, "origin", "Origin not allowed", "pages of this origin may not call: the server's AllowedOrigins has to list it")
}

func problemNoCall() *problem {
	return newProblem(http.StatusNotFound, "no-call", "No such call", "the call has ended, or its Location belongs to another host: make a new one")
}

func problemMethod(allow string) *problem {
	return newProblem(http.StatusMethodNotAllowed, "method", "Method not allowed", "allowed here: "+allow)
}

func problemContentType(want string) *problem {
	return newProblem(http.StatusUnsupportedMediaType, "content-type", "Unsupported content type", "send Content-Type "+want)
}

func problemTooLarge() *problem {
	return newProblem(http.StatusRequestEntityTooLarge, "too-large", "Request too large", "the server takes no longer one: see MaxBody and MaxOfferBytes")
}

func problemLimited(wait time.Duration) *problem {
	return newProblem(http.StatusTooManyRequests, "limited", "Too many requests", "this address asks too often: try again later").after(wait)
}

func problemBad(detail string) *problem {
	return newProblem(http.StatusBadRequest, "bad-request", "Bad request", detail)
}

// problemOf says what an error of Accept, Renegotiate or SetAnswer means for
// the client. Whatever it does not know is the application's, and its text not
// for strangers.
func (g *signalling) problemOf(err error) *problem {
	var bad *OfferError
	var limit *StatusError
	switch {
	case errors.As(err, &limit):
		return problemOfHook(err, http.StatusForbidden)
	case errors.Is(err, ErrOfferTooLarge):
		return newProblem(http.StatusRequestEntityTooLarge, "too-large", "Offer too large", err.Error())
	case errors.Is(err, ErrUnsupported), errors.Is(err, ErrChangedIdentity), errors.Is(err, ErrNoAudio):
		return newProblem(http.StatusUnprocessableEntity, "unsupported", "Offer cannot be answered", err.Error())
	case errors.As(err, &bad):
		return newProblem(http.StatusBadRequest, "bad-offer", "Bad offer", err.Error())
	case errors.Is(err, ErrNoOpus): // by way of the application, which may have wrapped it
		return newProblem(http.StatusUnprocessableEntity, "unsupported", "Offer cannot be answered", "no audio section with Opus")
	case errors.Is(err, errStale):
		return newProblem(http.StatusPreconditionFailed, "precondition", "If-Match does not match",
			"ICE was restarted since: drop these candidates")
	case errors.Is(err, ErrNoOffer):
		return newProblem(http.StatusConflict, "no-offer", "No offer to answer", "another offer has been made since: answer the newest one")
	case errors.Is(err, ErrFull):
		return newProblem(http.StatusServiceUnavailable, "full", "Host is full", "try again, or at another replica").after(retryAfter)
	case errors.Is(err, ErrDraining), errors.Is(err, ErrHostClosed):
		return newProblem(http.StatusServiceUnavailable, "draining", "Host takes no new calls", "try again at another replica").after(retryAfter)
	case errors.Is(err, ErrSessionClosed), errors.Is(err, net.ErrClosed):
		return problemNoCall()
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return newProblem(http.StatusRequestTimeout, "given-up", "Request given up", "the request ended before its answer was made")
	default:
		g.warnRefused(time.Now(), err)
		return newProblem(http.StatusInternalServerError, "internal", "Call could not be set up", "the server's log says why")
	}
}

// warnRefused logs an error of the application's, at most once a second: what
// brings it about may be a stranger's offer.
func (g *signalling) warnRefused(now time.Time, err error) {
	if last := g.warned.Load(); (last == nil || now.Sub(*last) >= time.Second) && g.warned.CompareAndSwap(last, &now) {
		g.host.log.Warn("an offer was refused", "err", err)
	}
}

// problemOfHook answers with the status of a *StatusError, or else with the given one.
func problemOfHook(err error, status int) *problem {
	var se *StatusError
	detail := strings.ToLower(http.StatusText(status))
	if errors.As(err, &se) && se.Status >= 400 && se.Status < 600 {
		status, detail = se.Status, se.Error()
	}
	title := http.StatusText(status)
	if title == "" {
		title = "Refused"
	}
	return newProblem(status, "refused", title, detail)
}
