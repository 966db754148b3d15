package bridge

import (
	"encoding/json"
	"math"
	"strconv"
	"time"

	"github.com/usher-rtc/usher/ufrag"
)

// The types of text messages. Others are ignored.
const (
	typeStart       = "start"       // transceiver: the first message of a connection
	typeReady       = "ready"       // service: the answer to it
	typeInterrupt   = "interrupt"   // service: drop what is queued for the client
	typeInterrupted = "interrupted" // transceiver: the answer to it
	typeMark        = "mark"        // service: tell me when the audio up to here was sent
	typeMarked      = "marked"      // transceiver: it was
	typePlayback    = "playback"    // transceiver: how much is queued
	typeMissed      = "missed"      // transceiver: what the service was not sent
	typeDropped     = "dropped"     // transceiver: what the client was not sent
	typeEnd         = "end"         // both: the session is over, or is to be
)

// RouteInfo is the route of a session in `start`.
type RouteInfo struct {
	// Cluster is the site of the transceiver.
	Cluster uint16 `json:"cluster"`
	// Host is the transceiver's address for its relays, or its number in the
	// relays' directory.
	Host string `json:"host"`
	// Session is the transceiver's number for the session.
	Session uint32 `json:"session"`
}

func routeInfo(r ufrag.Route) RouteInfo {
	info := RouteInfo{Cluster: r.Cluster, Host: strconv.FormatUint(r.Host, 10), Session: r.Session}
	if addr, ok := r.AddrPort(); ok {
		info.Host = addr.String()
	}
	return info
}

// Resume is what a service is told about the connection before this one.
type Resume struct {
	// After says why it ended.
	After string `json:"after"`
	// QueuedMS is how much audio of the connection before is still queued for
	// the client and is played on. An Utterance without a Write stands for it.
	QueuedMS float64 `json:"queued_ms"`
	// PositionMS is how far the client was sent the service's stream, in the
	// timestamps of the connection before.
	PositionMS float64 `json:"position_ms"`
}

// Missed is audio and events of the client that the service was not sent, or
// that it may not have got.
type Missed struct {
	// Reason is "connecting", "reconnecting" or "not reading".
	Reason string `json:"reason"`
	// Frames and MS are audio that was never sent.
	Frames uint64  `json:"frames"`
	MS     float64 `json:"ms"`
	// Unconfirmed are frames and events that were sent on the connection
	// before and that no pong confirmed.
	UnconfirmedFrames uint64 `json:"unconfirmed_frames"`
	UnconfirmedEvents uint64 `json:"unconfirmed_events"`
}

// The reasons in Missed.
const (
	missedConnecting   = "connecting"
	missedReconnecting = "reconnecting"
	missedNotReading   = "not reading"
)

// start is the first message of a connection.
type start struct {
	Type       string          `json:"type"`
	Token      string          `json:"token"`
	Session    string          `json:"session"`
	Connection int             `json:"connection"`
	Route      RouteInfo       `json:"route"`
	Client     string          `json:"client"`
	Ingress    uint16          `json:"ingress"`
	Codecs     []string        `json:"codecs"`
	WindowMS   float64         `json:"window_ms"`
	Metadata   json.RawMessage `json:"metadata,omitempty"`
	Resume     *Resume         `json:"resume,omitempty"`
}

type ready struct {
	Type  string `json:"type"`
	Codec string `json:"codec,omitempty"`
}

type interrupt struct {
	Type string `json:"type"`
	ID   uint64 `json:"id"`
}

type interrupted struct {
	Type       string  `json:"type"`
	ID         uint64  `json:"id"`
	PlayedMS   float64 `json:"played_ms"`
	DroppedMS  float64 `json:"dropped_ms"`
	PositionMS float64 `json:"position_ms"`
}

type mark struct {
	Type string `json:"type"`
	ID   uint64 `json:"id"`
}

type marked struct {
	Type        string `json:"type"`
	ID          uint64 `json:"id"`
	Interrupted bool   `json:"interrupted"`
}

type playback struct {
	Type       string  `json:"type"`
	TakenMS    float64 `json:"taken_ms"`
	QueuedMS   float64 `json:"queued_ms"`
	PositionMS float64 `json:"position_ms"`
}

type missed struct {
	Type string `json:"type"`
	Missed
}

type dropped struct {
	Type   string  `json:"type"`
	What   string  `json:"what"` // "audio" or "event"
	Reason string  `json:"reason"`
	Count  uint64  `json:"count"`
	MS     float64 `json:"ms,omitempty"`
}

type end struct {
	Type   string `json:"type"`
	Reason string `json:"reason"`
}

// envelope is the one field that all text messages have.
type envelope struct {
	Type string `json:"type"`
}

// fromService holds any text message of a service that has a meaning here.
type fromService struct {
	Codec  string `json:"codec"`
	ID     uint64 `json:"id"`
	Reason string `json:"reason"`
}

// fromTransceiver holds any text message of a transceiver that has a meaning
// for a service, but `start`.
type fromTransceiver struct {
	ID          uint64  `json:"id"`
	Reason      string  `json:"reason"`
	DroppedMS   float64 `json:"dropped_ms"`
	PositionMS  float64 `json:"position_ms"`
	Interrupted bool    `json:"interrupted"`
	TakenMS     float64 `json:"taken_ms"`
	QueuedMS    float64 `json:"queued_ms"`
	What        string  `json:"what"`
	Count       uint64  `json:"count"`
	Missed
}

// millis is a duration in JSON: milliseconds, with decimals where there are
// frames of 2.5 ms.
func millis(d time.Duration) float64 { return float64(d/time.Microsecond) / 1000 }

// fromMillis takes nonsense for the nearest sense: at most a year.
func fromMillis(ms float64) time.Duration {
	const year = 365 * 24 * time.Hour
	return time.Duration(math.Round(max(0, min(ms, millis(year)))*1000)) * time.Microsecond
}

// parseText reads a text message. The type is read alone first: other fields
// of a message of a later version may be of any kind.
func parseText(message []byte, v any, known func(typ string) bool) (typ string, err error) {
	var e envelope
	if err := json.Unmarshal(message, &e); err != nil {
		return "", violation("a text message without a type: %v", err)
	}
	if !known(e.Type) {
		return "", nil
	}
	if err := json.Unmarshal(message, v); err != nil {
		return "", violation("a bad %s: %v", e.Type, err)
	}
	return e.Type, nil
}
