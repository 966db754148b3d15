package stun

import (
	"encoding/binary"
	"testing"
)

// TestClassifyEveryFirstByte is the table of RFC 7983 section 7.
func TestClassifyEveryFirstByte(t *testing.T) {
	for first := range 256 {
		without := make([]byte, 40)
		without[0] = byte(first)
		with := make([]byte, 40)
		with[0] = byte(first)
		binary.BigEndian.PutUint32(with[4:], Cookie)

		wantWithout, wantWith := ClassOther, ClassOther
		switch {
		case first <= 3:
			wantWith = ClassSTUN
		case first >= 20 && first <= 63:
			wantWithout, wantWith = ClassDTLS, ClassDTLS
		case first >= 128 && first <= 191:
			wantWithout, wantWith = ClassRTP, ClassRTP
		}
		if c := Classify(without); c != wantWithout {
			t.Errorf("first byte %d: %v, want %v", first, c, wantWithout)
		}
		if c := Classify(with); c != wantWith {
			t.Errorf("first byte %d with cookie: %v, want %v", first, c, wantWith)
		}
	}
	if c := Classify(nil); c != ClassOther {
		t.Errorf("empty: %v", c)
	}
	if c := Classify(goldenMessage()[:19]); c != ClassOther {
		t.Errorf("19 bytes: %v", c)
	}
}

func TestClassNames(t *testing.T) {
	for c, want := range map[Class]string{ClassOther: "other", ClassSTUN: "stun", ClassDTLS: "dtls", ClassRTP: "rtp"} {
		if c.String() != want {
			t.Errorf("%d: %s, want %s", c, c, want)
		}
	}
}

func TestSSRC(t *testing.T) {
	rtp := unhex(t, "80600001 00000002 aabbccdd 00")
	rtcp := unhex(t, "80c80006 11223344 55667788")
	for _, test := range []struct {
		name   string
		packet []byte
		ssrc   uint32
		ok     bool
		isRTCP bool
	}{
		{"RTP", rtp, 0xaabbccdd, true, false},
		{"RTP with marker and payload type 96", append([]byte{0x80, 0xe0}, rtp[2:]...), 0xaabbccdd, true, false},
		{"RTP, 12 bytes", rtp[:12], 0xaabbccdd, true, false},
		{"RTP, 11 bytes", rtp[:11], 0, false, false},
		{"RTCP sender report", rtcp, 0x11223344, true, true},
		{"RTCP, 8 bytes", rtcp[:8], 0x11223344, true, true},
		{"RTCP, 7 bytes", rtcp[:7], 0, false, true},
		{"RTCP 192", append([]byte{0x80, 192}, rtcp[2:]...), 0x11223344, true, true},
		{"RTCP 223", append([]byte{0x80, 223}, rtcp[2:]...), 0x11223344, true, true},
		{"191 is RTP", append([]byte{0x80, 191}, rtcp[2:]...), 0x55667788, true, false},
		{"224 is RTP", append([]byte{0x80, 224}, rtcp[2:]...), 0x55667788, true, false},
		{"DTLS", append([]byte{0x16, 0xfe}, rtp[2:]...), 0, false, false},
		{"STUN", goldenMessage(), 0, false, false},
		{"empty", nil, 0, false, false},
	} {
		ssrc, ok := SSRC(test.packet)
		if ssrc != test.ssrc || ok != test.ok || IsRTCP(test.packet) != test.isRTCP {
			t.Errorf("%s: %#x, %v, RTCP %v", test.name, ssrc, ok, IsRTCP(test.packet))
		}
	}
}
