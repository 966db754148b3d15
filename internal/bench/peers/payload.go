package peers

import "encoding/binary"

// MinPayload is the smallest payload: an RTP header and a time stamp.
const MinPayload = 20

// ssrcTag is the first byte of every SSRC, to know our own packets by.
const ssrcTag = 0x5A

// PutPayload writes the start of a payload: an RTP header with the client in
// the SSRC, and a time.
func PutPayload(b []byte, client int, seq uint16, stamp int64) {
	b[0], b[1] = 0x80, 111
	binary.BigEndian.PutUint16(b[2:], seq)
	binary.BigEndian.PutUint32(b[4:], uint32(seq)*960)
	binary.BigEndian.PutUint32(b[8:], ssrcTag<<24|uint32(client))
	binary.BigEndian.PutUint64(b[12:], uint64(stamp))
}

// ParsePayload reads what [PutPayload] wrote.
func ParsePayload(b []byte) (client int, stamp int64, ok bool) {
	if len(b) < MinPayload || b[0] != 0x80 || b[8] != ssrcTag {
		return 0, 0, false
	}
	client = int(binary.BigEndian.Uint32(b[8:]) & 0xffffff)
	return client, int64(binary.BigEndian.Uint64(b[12:])), true
}
