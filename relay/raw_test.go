package relay

import (
	"encoding/binary"
	"strings"

	"github.com/usher-rtc/usher/internal/stun"
)

// rawCheck is a check with a USERNAME of a given length, also of lengths that
// the builder refuses.
func rawCheck(id identity, total int) []byte {
	user := id.ufrag + ":" + strings.Repeat("x", total-len(id.ufrag)-1)
	if total <= stun.MaxUsername {
		return id.checkFrom(user[len(id.ufrag)+1:], id.password)
	}
	p := []byte{0, 1, 0, 0, 0x21, 0x12, 0xa4, 0x42, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 6, 0, 0}
	binary.BigEndian.PutUint16(p[22:], uint16(total))
	p = append(p, user...)
	for len(p)%4 != 0 {
		p = append(p, 0)
	}
	binary.BigEndian.PutUint16(p[2:], uint16(len(p)-20))
	return p
}
