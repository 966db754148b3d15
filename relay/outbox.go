package relay

import (
	"net/netip"

	"github.com/usher-rtc/usher/internal/forward"
	"github.com/usher-rtc/usher/internal/trunk"
	"github.com/usher-rtc/usher/internal/udpbatch"
)

// outbox collects datagrams to the clients of an ingress. Payloads stay where
// they were received.
type outbox struct {
	to4, to6 bool // the families that the socket can send to
	messages []udpbatch.Message
	starts   []int    // of each message's payloads in payloads
	payloads [][]byte // one for each packet
}

// A run of packets to one client becomes one message, within what the kernel
// takes: 64 segments, 65,507 bytes.
const (
	maxSegments = 64
	maxRun      = 65_000
)

// add appends a packet for a client. A run of packets of one size to one client
// (the last may be shorter) becomes one message that the kernel cuts.
func (o *outbox) add(f *trunk.Frame, local netip.Addr) {
	if last := len(o.messages) - 1; last >= 0 {
		m, run := &o.messages[last], o.payloads[o.starts[last]:]
		size := len(run[0])
		if m.To == f.Client && m.TOS == f.TOS && m.Local == local &&
			len(f.Payload) > 0 && len(f.Payload) <= size && len(run[len(run)-1]) == size &&
			len(run) < maxSegments && (len(run)+1)*size <= maxRun {
			m.Segment = size
			o.payloads = append(o.payloads, f.Payload)
			return
		}
	}
	o.starts = append(o.starts, len(o.payloads))
	o.payloads = append(o.payloads, f.Payload)
	o.messages = append(o.messages, udpbatch.Message{To: f.Client, Local: local, TOS: f.TOS})
}

// deliver sends what is in the outbox of an ingress.
func (w *worker) deliver(i int) {
	o := &w.clients[i]
	if len(o.messages) == 0 {
		return
	}
	end := len(o.payloads)
	for j := len(o.messages) - 1; j >= 0; j-- {
		o.messages[j].Buffers = o.payloads[o.starts[j]:end]
		end = o.starts[j]
	}
	w.conns[i].WriteBatch(o.messages)
	n := &w.counts.now
	for j := range o.messages {
		m := &o.messages[j]
		if m.Err != nil {
			for range m.Buffers {
				w.drop(forward.SendClient, m.To, w.srv.ingresses[i].ID)
			}
			continue
		}
		n[cToClients] += uint64(len(m.Buffers))
		for _, b := range m.Buffers {
			n[cToClientsBytes] += uint64(len(b))
		}
	}
	clear(o.messages)
	clear(o.payloads)
	o.messages, o.payloads, o.starts = o.messages[:0], o.payloads[:0], o.starts[:0]
}
