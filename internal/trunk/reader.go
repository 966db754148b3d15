package trunk

import "encoding/binary"

// Reader reads datagrams. It allocates nothing; its scratch space makes it
// about 9 KB, so keep one and use it again. One goroutine at a time.
type Reader struct {
	rest    []byte
	body    []byte
	scratch [MaxTagged]byte
}

// Open checks the whole datagram b and fills h. Unless it returns OK nothing
// of the datagram is to be used, and neither Next nor Body yield anything: a
// datagram is delivered whole or not at all. The Reader keeps b, and does not
// write to it, until the next Open.
func (r *Reader) Open(b []byte, keys Keys, h *Header) Problem {
	r.rest, r.body = nil, nil
	*h = Header{}
	switch {
	case len(b) < HeaderLen:
		return ProblemShort
	case b[0] != Version:
		return ProblemVersion
	case Type(b[1]) < TypeData || Type(b[1]) > TypeGoodbye:
		return ProblemType
	case b[3] == 0:
		return ProblemHops
	}
	key, ok := keys.TrunkKey(b[2])
	if !ok {
		return ProblemKey
	}
	tagged := append(r.scratch[:0], b[:HeaderLen]...)
	clear(tagged[tagAt:])
	content := b[HeaderLen:]
	if Type(b[1]) == TypeData {
		var p Problem
		if tagged, p = appendFrameHeaders(tagged, content); p != OK {
			return p
		}
	} else {
		if len(b) > len(r.scratch) {
			return ProblemControl
		}
		tagged = append(tagged, content...)
	}
	// Not a comparison in constant time: a forger on the private network would
	// have to measure nanoseconds through a socket that never answers.
	if sum(&key, tagged) != binary.BigEndian.Uint64(b[tagAt:]) {
		return ProblemTag
	}
	*h = Header{
		Type:  Type(b[1]),
		KeyID: b[2],
		Hops:  b[3],
		Epoch: binary.BigEndian.Uint64(b[4:]),
		Seq:   binary.BigEndian.Uint32(b[12:]),
	}
	if h.Type == TypeData {
		r.rest = content
	} else {
		r.body = content
	}
	return OK
}

// appendFrameHeaders appends the headers of all frames in b. It never grows
// dst, which has room for MaxFrames of them.
func appendFrameHeaders(dst, b []byte) ([]byte, Problem) {
	if len(b) == 0 {
		return dst, ProblemEmpty
	}
	for n := 0; len(b) > 0; n++ {
		if n == MaxFrames {
			return dst, ProblemFrames
		}
		header, payload, p := checkFrame(b)
		if p != OK {
			return dst, p
		}
		dst = append(dst, b[:header]...)
		b = b[header+payload:]
	}
	return dst, OK
}

// Next fills f with the next frame of the data datagram that Open accepted, and
// reports false when there are no more.
func (r *Reader) Next(f *Frame) bool {
	if len(r.rest) == 0 {
		return false
	}
	r.rest = readFrame(r.rest, f)
	return true
}

// Body returns the body of the control datagram that Open accepted, for the
// Parse method of its type. It is nil for a data datagram.
func (r *Reader) Body() []byte { return r.body }
