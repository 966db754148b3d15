package flowtable

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"github.com/usher-rtc/usher/ufrag"
)

// RecordLen is the size in bytes of a flow in its binary form.
//
//	 0  client address 16 (IPv4 mapped), port 2, ingress 2
//	20  route: kind and cluster 2, host 8, session 4
//	34  upstream address 16 (IPv4 mapped), port 2
//	52  local address 16 (IPv4 mapped), all zero for none
//	68  state 1, flags 1 (bit 0: TCP), number of SSRCs 1, reserved 1
//	72  SSRCs 4 x 4, unused ones zero
//	88  tick of the last upstream packet 4, tick of ownership 4
//
// All numbers are big endian.
const RecordLen = 96

// ErrRecord is returned for bytes that are no flow.
var ErrRecord = errors.New("flowtable: malformed record of a flow")

// AppendRecord appends the flow in its binary form, for another process that takes
// it over. Ticks go as they are: that process needs the same origin.
func (f *Flow) AppendRecord(dst []byte) []byte {
	key, up := packKey(f.Key), packAddrPort(f.Upstream)
	dst = append(dst, key[:]...)
	dst = binary.BigEndian.AppendUint16(dst, uint16(f.Route.Kind)<<12|f.Route.Cluster&0x0fff)
	dst = binary.BigEndian.AppendUint64(dst, f.Route.Host)
	dst = binary.BigEndian.AppendUint32(dst, f.Route.Session)
	dst = append(dst, up[:]...)
	var local [16]byte
	if f.Local.IsValid() {
		local = f.Local.As16()
	}
	dst = append(dst, local[:]...)
	var flags byte
	if f.TCP {
		flags = flagTCP
	}
	n := min(f.NumSSRCs, MaxSSRCs)
	dst = append(dst, byte(f.State), flags, n, 0)
	for i, ssrc := range f.SSRCs {
		if i >= int(n) {
			ssrc = 0
		}
		dst = binary.BigEndian.AppendUint32(dst, ssrc)
	}
	dst = binary.BigEndian.AppendUint32(dst, uint32(f.LastUpstream))
	return binary.BigEndian.AppendUint32(dst, uint32(f.Since))
}

// ReadRecord reads a flow from exactly RecordLen bytes. It returns ErrRecord for
// anything that AppendRecord would not write for a flow of a table; what else a
// flow may not be, such as one to a forbidden upstream, is the caller's to say.
func ReadRecord(b []byte) (Flow, error) {
	if len(b) != RecordLen {
		return Flow{}, ErrRecord
	}
	key, up := packedKey(b), packedAddrPort(b[34:])
	kindCluster := binary.BigEndian.Uint16(b[20:])
	f := Flow{
		Key:          key.unpack(),
		Upstream:     up.unpack(),
		State:        State(b[68]),
		TCP:          b[69]&flagTCP != 0,
		NumSSRCs:     b[70],
		LastUpstream: Tick(binary.BigEndian.Uint32(b[88:])),
		Since:        Tick(binary.BigEndian.Uint32(b[92:])),
		Route: ufrag.Route{
			Kind: ufrag.Kind(kindCluster >> 12), Cluster: kindCluster & 0x0fff,
			Host: binary.BigEndian.Uint64(b[22:]), Session: binary.BigEndian.Uint32(b[30:]),
		},
	}
	switch {
	case f.State != Unconfirmed && f.State != Confirmed,
		b[69]&^flagTCP != 0, b[71] != 0,
		f.NumSSRCs > MaxSSRCs, f.State == Unconfirmed && f.NumSSRCs > 0,
		f.Route != ufrag.Route{} && !f.Route.IsValid(),
		f.Key.Client.Port() == 0, f.Upstream.Port() == 0,
		f.Key.Client.Addr().IsUnspecified(), f.Upstream.Addr().IsUnspecified():
		return Flow{}, ErrRecord
	}
	if local := [16]byte(b[52:]); local != ([16]byte{}) {
		f.Local = netip.AddrFrom16(local).Unmap()
	}
	for i := range f.SSRCs {
		f.SSRCs[i] = binary.BigEndian.Uint32(b[72+4*i:])
		if i >= int(f.NumSSRCs) && f.SSRCs[i] != 0 {
			return Flow{}, ErrRecord
		}
	}
	return f, nil
}
