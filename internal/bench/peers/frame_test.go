package peers

import (
	"bytes"
	"net/netip"
	"testing"
)

func TestPlainFrame(t *testing.T) {
	client := netip.MustParseAddrPort("127.1.2.3:40000")
	buf := make([]byte, plainLen+5)
	copy(buf[plainLen:], "hello")
	putPlain(buf, client, 5)
	got, payload, ok := parsePlain(buf)
	if !ok || got != client || !bytes.Equal(payload, []byte("hello")) {
		t.Fatalf("%v %q %v", got, payload, ok)
	}
	for n := range buf {
		if _, _, ok := parsePlain(buf[:n]); ok {
			t.Errorf("accepted %d of %d bytes", n, len(buf))
		}
	}
}

func TestPayload(t *testing.T) {
	var b [MinPayload]byte
	PutPayload(b[:], 999, 7, 123456789)
	client, stamp, ok := ParsePayload(b[:])
	if !ok || client != 999 || stamp != 123456789 {
		t.Fatalf("%d %d %v", client, stamp, ok)
	}
	if _, _, ok := ParsePayload(b[:MinPayload-1]); ok {
		t.Error("accepted a short payload")
	}
	b[8] = 0
	if _, _, ok := ParsePayload(b[:]); ok {
		t.Error("accepted somebody else's packet")
	}
}
