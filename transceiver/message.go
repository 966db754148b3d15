package transceiver

import (
	"encoding/json"
	"unicode/utf8"
)

// subprotocol is the version of the messages. A client names it in
// Sec-WebSocket-Protocol.
const subprotocol = "usher.v1"

// The types of messages; docs/signalling.md describes them.
const (
	typeOffer     = "offer"     // both ways
	typeAnswer    = "answer"    // both ways
	typeRefuse    = "refuse"    // from the client: it cannot answer the Host's offer
	typeCandidate = "candidate" // from the client, and ignored
	typeEvent     = "event"     // both ways, between the applications
	typeEnd       = "end"       // both ways
	typeDraining  = "draining"  // to the client
	typeError     = "error"     // to the client
)

// maxID is the largest integer that JavaScript can hold.
const maxID = 1<<53 - 1

// message is one JSON text message of a WebSocket.
type message struct {
	Type string `json:"type"`
	// ID names an offer: the answer, or the error, has the same. Each side
	// counts its own.
	ID       uint64          `json:"id,omitempty"`
	SDP      string          `json:"sdp,omitempty"`
	Session  json.RawMessage `json:"session,omitempty"`  // with the first offer: metadata
	Location string          `json:"location,omitempty"` // with the first answer
	Event    json.RawMessage `json:"event,omitempty"`
	Reason   string          `json:"reason,omitempty"`
	Detail   string          `json:"detail,omitempty"`
	Seconds  int             `json:"seconds,omitempty"` // until a drain ends the call
	Problem  *problem        `json:"problem,omitempty"`
}

// encode returns the message's JSON.
func (m *message) encode() []byte {
	b, err := json.Marshal(m)
	if err != nil {
		panic(err) // RawMessages are checked where they come from
	}
	return b
}

// parseMessage reads a client's message and checks what every message of its
// type needs. Members that are not known are ignored, so that clients may be
// newer. With a problem comes what could be read, for its id.
func parseMessage(text bool, b []byte) (m message, p *problem) {
	if !text || !utf8.Valid(b) {
		return m, problemMessage("messages are JSON objects as UTF-8 text")
	}
	if err := json.Unmarshal(b, &m); err != nil {
		return m, problemMessage("not a JSON object of the documented form: " + err.Error())
	}
	if m.ID > maxID {
		return m, problemMessage("id is larger than 2^53-1")
	}
	switch m.Type {
	case typeOffer, typeAnswer:
		switch {
		case m.ID == 0:
			return m, problemMessage(m.Type + " needs an id of at least 1")
		case m.SDP == "":
			return m, problemMessage(m.Type + " needs sdp")
		}
	case typeRefuse:
		if m.ID == 0 {
			return m, problemMessage("refuse needs the id of an offer")
		}
	case typeEvent:
		if len(m.Event) == 0 {
			return m, problemMessage("event needs the member event, any JSON value")
		}
	case typeCandidate, typeEnd:
	case "":
		return m, problemMessage("a message needs a type")
	default:
		return m, newProblem(400, "unknown-message", "Unknown message",
			"there is no message of type "+oneLine(m.Type)+" from a client in "+subprotocol)
	}
	return m, nil
}

func problemMessage(detail string) *problem {
	return newProblem(400, "bad-message", "Bad message", detail)
}
