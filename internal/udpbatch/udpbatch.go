package udpbatch

import (
	"net/netip"
	"time"
)

// MaxDatagram is the largest UDP payload that a Group receives whole: the
// 16-bit length field of UDP allows no more.
const MaxDatagram = 65535

// Packet is a received datagram. Everything in it belongs to the Group and is
// valid until [Handler.HandleBatch] returns; the handler may change Data in
// place.
type Packet struct {
	// Data is the payload. Its capacity ends with it.
	Data []byte
	// From is the sender. An IPv4 address is in its 4-byte form also on a
	// dual-stack socket. A link-local IPv6 address keeps its zone; on the batched
	// path the zone is the interface index in decimal, never a name.
	From netip.AddrPort
	// Local is the address the datagram was sent to. It is set on sockets
	// bound to a wildcard address on the batched path and is zero elsewhere.
	Local netip.Addr
	// TOS is the IPv4 TOS byte or the IPv6 traffic class: DSCP and ECN. It is 0
	// on the portable path.
	TOS uint8
	// Truncated says that Data is not the whole datagram. No datagram of up
	// to MaxDatagram bytes is ever cut.
	Truncated bool
}

// Message is a datagram to send.
type Message struct {
	// Buffers are gathered into one datagram, in order. WriteBatch does not
	// change them and keeps no use of them after it returned.
	Buffers [][]byte
	// To is the destination. Both forms of an IPv4 address are accepted. On
	// the batched path a zone must be a decimal interface index, as in Packet.From.
	To netip.AddrPort
	// Local is the source address, for sockets bound to a wildcard address; zero
	// lets the kernel choose. It is ignored elsewhere and on the portable path.
	Local netip.Addr
	// TOS is the IPv4 TOS byte or the IPv6 traffic class. 0 leaves the socket's
	// own value. It is ignored on the portable path.
	TOS uint8
	// Err is set by WriteBatch: nil if the message was handed to the kernel. On
	// the batched path it is a [syscall.Errno] or [net.ErrClosed].
	Err error
}

// Handler takes what a Group receives. The Group never calls it from two
// goroutines at a time.
type Handler interface {
	// HandleBatch takes 1 to GroupConfig.Batch datagrams read from the socket
	// with this index in the Group, in the order in which they arrived.
	HandleBatch(conn int, pkts []Packet)
	// Idle is called when all sockets that had something to read were read once,
	// after each Wake, when the last wait is over, and once at the start. It
	// returns the longest time until the next call; 0 or less means that no
	// call is due. The batched path keeps waits to a fraction of a millisecond
	// where the kernel can (Linux 5.11), elsewhere to the next full millisecond.
	Idle(now time.Time) (wait time.Duration)
}

// SocketConfig says how to open or set up a socket.
type SocketConfig struct {
	// Addr is the address to bind. The zero value, as well as [::]:0, is any
	// port on every address of both families. A zone may be a name or an index.
	Addr netip.AddrPort
	// ReusePort sets SO_REUSEPORT: several sockets share the address, and the
	// kernel spreads senders over them by a hash of addresses and ports. It
	// needs Linux.
	ReusePort bool
	// V6Only keeps a socket bound to [::] from receiving IPv4.
	V6Only bool
	// ReadBuffer and WriteBuffer are the sizes in bytes to ask the kernel for.
	// 0 leaves the system's default. See Stats for what was granted.
	ReadBuffer, WriteBuffer int
	// GSO gives messages of one size to one place, if they follow one another, to
	// the kernel as one that it cuts (Linux 4.18). It switches itself off where a
	// device or a driver refuses; see Stats.GSO.
	GSO bool
	// GRO lets the kernel hand over runs of equal-sized datagrams of one sender
	// at once (Linux 5.0). Handlers see no difference.
	GRO bool
}

// Offload is the state of segmentation offload in one direction.
type Offload uint8

// States of an offload.
const (
	OffloadOff         Offload = iota // not asked for
	OffloadOn                         // asked for and in use
	OffloadUnsupported                // asked for; the kernel or the path has none
	OffloadFailed                     // asked for; switched off because sends failed
)

// String returns the state in one word.
func (o Offload) String() string {
	switch o {
	case OffloadOff:
		return "off"
	case OffloadOn:
		return "on"
	case OffloadUnsupported:
		return "unsupported"
	default:
		return "failed"
	}
}

// Stats is a snapshot of a Conn's counters. They only grow.
type Stats struct {
	// Received and ReceivedBytes count datagrams and payload bytes read.
	Received, ReceivedBytes uint64
	// Sent counts datagrams the kernel accepted.
	Sent uint64
	// Reads and Writes count the system calls that moved them.
	Reads, Writes uint64
	// KernelDrops counts datagrams the kernel dropped at this socket because
	// its receive buffer was full (or the checksum was wrong). Linux only.
	KernelDrops uint64
	// Truncated counts datagrams that were cut on receive.
	Truncated uint64
	// BadSource counts datagrams of the portable path whose sender has no IP address.
	BadSource uint64
	// ReadErrors and WriteErrors count errors by class. A failed write is a message
	// that was not sent; a failed read is usually an ICMP error of an earlier write.
	ReadErrors, WriteErrors ErrorCounts
	// AskedReadBuffer and AskedWriteBuffer repeat the configuration. Granted…
	// is what the kernel gave, in the same unit: Linux charges twice that for
	// its bookkeeping and reports the double, which is halved here. It is 0
	// where the system does not say.
	AskedReadBuffer, GrantedReadBuffer   int
	AskedWriteBuffer, GrantedWriteBuffer int
	// GSO and GRO are the states of segmentation offload.
	GSO, GRO Offload
	// GSORefused counts runs of messages that the kernel refused to segment and
	// that were sent one by one instead.
	GSORefused uint64
	// TOSRefused counts messages that went without their TOS byte because the
	// kernel refused the control message.
	TOSRefused uint64
}
