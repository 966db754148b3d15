package relay

import (
	"net/netip"
	"slices"

	"github.com/usher-rtc/usher/internal/forward"
	"github.com/usher-rtc/usher/internal/trunk"
	"github.com/usher-rtc/usher/internal/udpbatch"
)

// outbox collects datagrams to the clients of an ingress. Payloads stay where
// they were received.
type outbox struct {
	to4, to6 bool // the families that the socket can send to
	messages []udpbatch.Message
	payloads [][]byte // one for each message
}

// add appends a packet for a client.
func (o *outbox) add(f *trunk.Frame, local netip.Addr) {
	o.payloads = append(o.payloads, f.Payload)
	// Cleared after the last batch. Field by field, as a whole one would be copied.
	o.messages = slices.Grow(o.messages, 1)[:len(o.messages)+1]
	m := &o.messages[len(o.messages)-1]
	m.To, m.Local, m.TOS = f.Client, local, f.TOS
}

// deliver sends what is in the outbox of an ingress.
func (w *worker) deliver(i int) {
	o := &w.clients[i]
	if len(o.messages) == 0 {
		return
	}
	for j := range o.messages {
		o.messages[j].Buffers = o.payloads[j : j+1]
	}
	w.conns[i].WriteBatch(o.messages)
	n := &w.counts.now
	for j := range o.messages {
		m := &o.messages[j]
		if m.Err != nil {
			w.drop(forward.SendClient, m.To, w.srv.ingresses[i].ID)
			continue
		}
		n[cToClients]++
		n[cToClientsBytes] += uint64(len(o.payloads[j]))
	}
	clear(o.messages)
	clear(o.payloads)
	o.messages, o.payloads = o.messages[:0], o.payloads[:0]
}
