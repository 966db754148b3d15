package hosts

import (
	"testing"

	"github.com/pion/ice/v4"
	"github.com/pion/webrtc/v4"
)

// A Pion that keeps the mux elsewhere must not go unnoticed.
func TestMuxOf(t *testing.T) {
	var se webrtc.SettingEngine
	if m, err := muxOf(&se); err == nil {
		t.Errorf("a mux where none was set: %v", m)
	}
	want := &muxEcho{UDPMux: new(ice.UDPMuxDefault)}
	se.SetICEUDPMux(want)
	if got, err := muxOf(&se); got != ice.UDPMux(want) || err != nil {
		t.Errorf("%v, %v", got, err)
	}
}

func TestIsAudio(t *testing.T) {
	packet := func(first, second byte) []byte {
		b := make([]byte, 20)
		b[0], b[1] = first, second
		return b
	}
	for name, c := range map[string]struct {
		b    []byte
		want bool
	}{
		"Opus":             {packet(0x80, 111), true},
		"Opus with marker": {packet(0x90, 0x80|111), true},
		"PCMU":             {packet(0x80, 0), true},
		"sender report":    {packet(0x80, 200), false},
		"feedback":         {packet(0x81, 205), false},
		"STUN":             {packet(0x00, 1), false},
		"DTLS":             {packet(22, 0xfe), false},
		"too short":        {packet(0x80, 111)[:12], false},
	} {
		if got := IsAudio(c.b); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
