package trunk

import (
	"bytes"
	"testing"
)

func TestRefusals(t *testing.T) {
	keys := keyring(t, 'a', 'a')
	frames := sampleFrames(t)
	good := build(t, keys, sampleHeader, frames[0], frames[6])
	last := HeaderLen + FrameLen + len(frames[0].Payload) // where the frame with everything begins
	at := func(i int, v ...byte) func([]byte) []byte {
		return func(b []byte) []byte { copy(b[i:], v); return b }
	}
	mapped := []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff}
	for name, test := range map[string]struct {
		change func([]byte) []byte
		want   Problem
	}{
		"nothing wrong":            {at(0), OK},
		"version 0":                {at(0, 0), ProblemVersion},
		"version 2":                {at(0, 2), ProblemVersion},
		"type 0":                   {at(1, 0), ProblemType},
		"type 7":                   {at(1, 7), ProblemType},
		"key id 0":                 {at(2, 0), ProblemKey},
		"key id b":                 {at(2, 'b'), ProblemKey},
		"hops 0":                   {at(3, 0), ProblemHops},
		"no frames":                {func(b []byte) []byte { return b[:HeaderLen] }, ProblemEmpty},
		"23 bytes":                 {func(b []byte) []byte { return b[:HeaderLen-1] }, ProblemShort},
		"a stray byte":             {func(b []byte) []byte { return append(b, 0) }, ProblemFrame},
		"a byte less":              {func(b []byte) []byte { return b[:len(b)-1] }, ProblemFrame},
		"payload length +1":        {at(last, 1, 45), ProblemFrame},
		"payload length 65535":     {at(last, 0xff, 0xff), ProblemFrame},
		"mapped client":            {at(last+6, mapped...), ProblemAddress},
		"route of kind 0":          {at(last+24, 0), ProblemRoute},
		"route of kind 15":         {at(last+24, 0xf0), ProblemRoute},
		"return of family 0":       {at(last+36, 0), ProblemAddress},
		"return of family 5":       {at(last+36, 5), ProblemAddress},
		"mapped return":            {at(last+37, mapped...), ProblemAddress},
		"no SSRC":                  {at(last+55, 0), ProblemSSRCs},
		"five SSRCs":               {at(last+55, 5), ProblemSSRCs},
		"too many frames":          {func(b []byte) []byte { return append(b[:HeaderLen], make([]byte, (MaxFrames+1)*FrameLen)...) }, ProblemFrames},
		"as many frames as may be": {func(b []byte) []byte { return append(b[:HeaderLen], make([]byte, MaxFrames*FrameLen)...) }, OK},
	} {
		b := test.change(bytes.Clone(good))
		if len(b) >= HeaderLen {
			b = reseal(t, keys, b)
		}
		if _, _, p := open(t, keys, b); p != test.want {
			t.Errorf("%s: %v, want %v", name, p, test.want)
		}
	}
}

// TestEveryPrefixIsRefused: a datagram that was cut, even between two frames, is refused
// whole.
func TestEveryPrefixIsRefused(t *testing.T) {
	keys := keyring(t, 'a', 'a')
	good := build(t, keys, sampleHeader, sampleFrames(t)...)
	for n := range good {
		if _, _, p := open(t, keys, good[:n:n]); p == OK {
			t.Errorf("%d of %d bytes are accepted", n, len(good))
		}
	}
}

// TestEveryTaggedBitCounts flips every bit: those of headers must be noticed,
// those of payloads are the payload's own business.
func TestEveryTaggedBitCounts(t *testing.T) {
	keys := keyring(t, 'a', 'a', 'b', 'c', 'e', 'i', 'q', 'A') // ids one bit apart, and their keys exist
	good := build(t, keys, sampleHeader, sampleFrames(t)...)
	payload := make([]bool, len(good))
	rest := good[HeaderLen:]
	slowFrames(rest, func(header []byte, f Frame) {
		start := cap(good) - cap(header) + len(header)
		for i := range f.Payload {
			payload[start+i] = true
		}
	})
	for bit := range len(good) * 8 {
		b := bytes.Clone(good)
		b[bit/8] ^= 1 << (bit % 8)
		if _, _, p := open(t, keys, b); (p == OK) != payload[bit/8] {
			t.Errorf("bit %d of byte %d: %v", bit%8, bit/8, p)
		}
	}
}

func TestOpenForgetsTheDatagramBefore(t *testing.T) {
	keys := keyring(t, 'a', 'a')
	good := build(t, keys, sampleHeader, sampleFrames(t)...)
	control, _ := (&Keepalive{}).Append(nil, &sampleHeader, keys)
	var r Reader
	var h Header
	var f Frame
	for _, next := range [][]byte{nil, good[:30], control} {
		if p := r.Open(good, keys, &h); p != OK || !r.Next(&f) {
			t.Fatal(p)
		}
		r.Open(next, keys, &h)
		if r.Next(&f) {
			t.Error("a frame of the datagram before")
		}
	}
	if r.Body() == nil {
		t.Error("no body of a control datagram")
	}
	if r.Open(good, keys, &h); r.Body() != nil {
		t.Error("the body of the datagram before")
	}
}

func TestNextKeepsNothingOfTheFrameBefore(t *testing.T) {
	keys := keyring(t, 'a', 'a')
	all := sampleFrames(t)
	var r Reader
	var h Header
	var f Frame
	if p := r.Open(build(t, keys, sampleHeader, all[6], all[0]), keys, &h); p != OK {
		t.Fatal(p)
	}
	r.Next(&f)
	if r.Next(&f); !equal(&f, &all[0]) {
		t.Errorf("%+v", f)
	}
}

func TestPayloadsDoNotReachIntoEachOther(t *testing.T) {
	keys := keyring(t, 'a', 'a')
	_, frames, _ := open(t, keys, build(t, keys, sampleHeader, sampleFrames(t)...))
	for i, f := range frames {
		if cap(f.Payload) != len(f.Payload) {
			t.Errorf("appending to payload %d would write into what follows", i)
		}
	}
}
