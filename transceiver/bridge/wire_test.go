package bridge

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"flag"
	"os"
	"strings"
	"testing"
	"time"
)

// The vectors are frozen: services in other languages are tested with them. The
// flag is for additions; a change of what is there already is a new protocol.
var updateVectors = flag.Bool("update-vectors", false, "write testdata/vectors.json")

const vectorsFile = "testdata/vectors.json"

type vectors struct {
	About    string          `json:"about"`
	Protocol string          `json:"protocol"`
	Binary   []binaryVector  `json:"binary"`
	Refused  []refusedVector `json:"refused"`
	Text     []textVector    `json:"text"`
}

type binaryVector struct {
	Name       string `json:"name"`
	Kind       Kind   `json:"kind"`
	Flags      Flags  `json:"flags"`
	Level      uint8  `json:"level"`
	DurationUS int64  `json:"duration_us"`
	Lost       uint32 `json:"lost"`
	TimeUS     int64  `json:"time_us"`
	Payload    string `json:"payload"`
	Message    string `json:"message"`
}

type refusedVector struct {
	Name    string `json:"name"`
	Message string `json:"message"`
}

type textVector struct {
	Name    string          `json:"name"`
	Message json.RawMessage `json:"message"`
}

// write makes a message by the text of docs/bridge.md, not by Append.
func (v *binaryVector) write(t *testing.T) []byte {
	payload, err := hex.DecodeString(v.Payload)
	if err != nil {
		t.Fatal(err)
	}
	b := []byte{byte(v.Kind), byte(v.Flags), v.Level, byte(v.DurationUS / 500)}
	b = append(b, byte(v.Lost>>24), byte(v.Lost>>16), byte(v.Lost>>8), byte(v.Lost))
	for shift := 56; shift >= 0; shift -= 8 {
		b = append(b, byte(v.TimeUS>>shift))
	}
	return append(b, payload...)
}

func makeVectors(t *testing.T) vectors {
	text := func(name string, v any) textVector {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return textVector{name, b}
	}
	first := start{
		Type: typeStart, Token: "4JQZ6X3M5TBVKYW2CD7RNGEALH", Session: "M3Q5ZK2N7WXCBTRA", Connection: 1,
		Route: RouteInfo{Cluster: 3, Host: "10.1.2.3:4000", Session: 2718281828}, Client: "198.51.100.4:50123", Ingress: 1,
		Codecs: []string{"opus", "pcm16/24000"}, WindowMS: 30000, Metadata: json.RawMessage(`{"voice":"calm"}`),
	}
	again := first
	again.Connection = 2
	again.Resume = &Resume{After: "connection lost", QueuedMS: 340, PositionMS: 1222.5}
	v := vectors{
		About:    "frozen; the second part of every binary message is its payload, all in hexadecimal",
		Protocol: Subprotocol,
		Binary: []binaryVector{
			{Name: "audio from the client, with level and voice", Kind: 1, Flags: 3, Level: 38, DurationUS: 20000, Lost: 2, TimeUS: 61_240_000, Payload: "7801020304"},
			{Name: "audio of 2.5 ms without a level, at the start", Kind: 1, DurationUS: 2500, Payload: "e0ff"},
			{Name: "audio of 120 ms after three hours", Kind: 1, Flags: 1, Level: 127, DurationUS: 120000, TimeUS: 10_800_000_000, Payload: "7f0655"},
			{Name: "PCM in place of a lost packet", Kind: 1, Flags: 4, DurationUS: 20000, TimeUS: 40000, Payload: "0100feff"},
			{Name: "audio from the service", Kind: 1, TimeUS: 1_500_000, Payload: "78a1b2c3"},
			{Name: "a text event", Kind: 2, TimeUS: 61_260_000, Payload: hex.EncodeToString([]byte(`{"type":"hi"}`))},
			{Name: "a binary event", Kind: 3, TimeUS: 61_260_000, Payload: "00ff80"},
			{Name: "an empty text event", Kind: 2},
		},
		Refused: []refusedVector{
			{"an empty message", ""},
			{"a header that is cut off", "010000280000000000000000000000"},
			{"a time that is too large", "01000028000000000020c49ba5e353f8"},
		},
		Text: []textVector{
			text("start", first),
			text("start, after a reconnection", again),
			text("ready, Opus", ready{Type: typeReady}),
			text("ready, PCM", ready{Type: typeReady, Codec: "pcm16/24000"}),
			text("interrupt", interrupt{typeInterrupt, 7}),
			text("interrupted", interrupted{Type: typeInterrupted, ID: 7, PlayedMS: 1220, DroppedMS: 4780, PositionMS: 2222.5}),
			text("mark", mark{typeMark, 8}),
			text("marked", marked{Type: typeMarked, ID: 8}),
			text("playback", playback{Type: typePlayback, TakenMS: 6000, QueuedMS: 4780, PositionMS: 1220}),
			text("missed", missed{Type: typeMissed, Missed: Missed{Reason: missedReconnecting, Frames: 12, MS: 240, UnconfirmedFrames: 31, UnconfirmedEvents: 1}}),
			text("dropped", dropped{Type: typeDropped, What: whatAudio, Reason: "window exceeded", Count: 25, MS: 500}),
			text("end", end{Type: typeEnd, Reason: "client closed"}),
		},
	}
	for i := range v.Binary {
		v.Binary[i].Message = hex.EncodeToString(v.Binary[i].write(t))
	}
	return v
}

func TestVectors(t *testing.T) {
	made, err := json.MarshalIndent(makeVectors(t), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	made = append(made, '\n')
	if *updateVectors {
		if err := os.WriteFile(vectorsFile, made, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	frozen, err := os.ReadFile(vectorsFile)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(made, frozen) {
		t.Error("the protocol is not the one of " + vectorsFile)
	}
	var v vectors
	if err := json.Unmarshal(frozen, &v); err != nil {
		t.Fatal(err)
	}
	for _, b := range v.Binary {
		message, err := hex.DecodeString(b.Message)
		if err != nil {
			t.Fatal(err)
		}
		want := Header{
			Kind: b.Kind, Flags: b.Flags, Level: b.Level, Lost: b.Lost,
			Duration: time.Duration(b.DurationUS) * time.Microsecond, Time: time.Duration(b.TimeUS) * time.Microsecond,
		}
		var got Header
		payload, ok := got.Parse(message)
		if !ok || got != want || hex.EncodeToString(payload) != b.Payload {
			t.Errorf("%s: %+v %x %v", b.Name, got, payload, ok)
		}
		if out := append(want.Append(nil), payload...); !bytes.Equal(out, message) {
			t.Errorf("%s: appends % x", b.Name, out)
		}
	}
	for _, r := range v.Refused {
		message, err := hex.DecodeString(r.Message)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := new(Header).Parse(message); ok {
			t.Errorf("%s is not refused", r.Name)
		}
	}
}

// TestThePageHoldsTheVectors: docs/bridge.md is what others implement from.
func TestThePageHoldsTheVectors(t *testing.T) {
	page, err := os.ReadFile("../../docs/bridge.md")
	if err != nil {
		t.Fatal(err)
	}
	has := func(name, want string) {
		if !strings.Contains(string(page), want) {
			t.Errorf("docs/bridge.md does not hold %s: %s", name, want)
		}
	}
	v := makeVectors(t)
	has("the protocol's name", v.Protocol)
	for _, b := range v.Binary {
		has(b.Name, "`"+b.Message[:2*HeaderLen]+" "+b.Payload+"`")
	}
	for _, r := range v.Refused {
		has(r.Name, "`"+r.Message+"`")
	}
	for _, m := range v.Text {
		has(m.Name, "\n"+string(m.Message)+"\n")
	}
}

// FuzzHeader compares Parse with a reading of the page that shares nothing
// with it.
func FuzzHeader(f *testing.F) {
	f.Add([]byte("\x01\x03\x26\x28\x00\x00\x00\x02\x00\x00\x00\x00\x03\xa6\x72\xc0payload"))
	f.Add([]byte("\x01"))
	f.Add(bytes.Repeat([]byte{0xff}, 16))
	f.Fuzz(func(t *testing.T, b []byte) {
		var h Header
		payload, ok := h.Parse(b)
		if len(b) < 16 || len(b) > 16+65536 {
			if ok {
				t.Fatalf("%d bytes are accepted", len(b))
			}
			return
		}
		micros := binary.BigEndian.Uint64(b[8:])
		if want := micros <= 9223372036854775; ok != want {
			t.Fatalf("a time of %d us: %v", micros, ok)
		}
		if !ok {
			return
		}
		if h.Kind != Kind(b[0]) || h.Flags != Flags(b[1]) || h.Level != b[2] || h.Duration.Microseconds() != int64(b[3])*500 ||
			h.Lost != uint32(b[4])<<24|uint32(b[5])<<16|uint32(b[6])<<8|uint32(b[7]) || uint64(h.Time.Microseconds()) != micros ||
			!bytes.Equal(payload, b[16:]) {
			t.Fatalf("%+v of % x", h, b[:16])
		}
		if out := append(h.Append(nil), payload...); !bytes.Equal(out, b) {
			t.Fatalf("% x becomes % x", b[:16], out[:16])
		}
	})
}
