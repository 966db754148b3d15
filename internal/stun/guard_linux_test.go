package stun

import (
	"bytes"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestNoByteOutsideTheDatagramIsTouched puts every prefix of every vector right
// before, and right after, a page that must not be read: one byte too far ends
// the process. The assembly below crc32 and SHA-1 is included in that. The
// datagram's own page is read-only, so writing to it does the same.
func TestNoByteOutsideTheDatagramIsTouched(t *testing.T) {
	page := os.Getpagesize()
	mem, err := unix.Mmap(-1, 0, 3*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Munmap(mem); err != nil {
			t.Error(err)
		}
	}()
	middle := mem[page : 2*page]
	for _, guard := range [][]byte{mem[:page], mem[2*page:]} {
		if err := unix.Mprotect(guard, unix.PROT_NONE); err != nil {
			t.Fatal(err)
		}
	}
	var a Authenticator
	vectors := append(browserCaptures(t), goldenMessage(), raw(BindingError,
		attribute(AttrXORMappedAddress, append([]byte{0, 2}, make([]byte, 18)...)...), attribute(AttrErrorCode, 0, 0, 4, 87)),
		unhex(t, "80600001 00000002 aabbccdd 00"), unhex(t, "80c80006 11223344 55667788"),
		check(nil, &a, "abcd", "efgh", func(b *Builder) { b.AddRaw(AttrDTLSInSTUN, make([]byte, 900)) }))
	// A length field that is right for the prefix lets the parser get further.
	for _, v := range vectors {
		for n := HeaderLen; n <= len(v); n += 4 {
			c := bytes.Clone(v[:n])
			c[2], c[3] = byte((n-HeaderLen)>>8), byte(n-HeaderLen)
			vectors = append(vectors, c)
		}
	}
	visit := func(b []byte) {
		var m Message
		if Parse(b, &m) == OK {
			m.SplitUsername()
			a.Check(&m, goldenPassword)
		}
		Classify(b)
		SSRC(b)
		IsRTCP(b)
	}
	for _, v := range vectors {
		if err := unix.Mprotect(middle, unix.PROT_READ|unix.PROT_WRITE); err != nil {
			t.Fatal(err)
		}
		copy(middle, v)
		copy(middle[page-len(v):], v)
		if err := unix.Mprotect(middle, unix.PROT_READ); err != nil {
			t.Fatal(err)
		}
		for n := range len(v) + 1 {
			visit(middle[:n])                           // before it is the guard
			visit(middle[page-len(v) : page-len(v)+n])  // with the rest behind it
			visit(middle[page-len(v)+n:][:len(v)-n])    // a suffix, up to the guard
			visit(middle[page-len(v):][:len(v):len(v)]) // whole, up to the guard
		}
	}
}
