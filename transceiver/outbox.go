package transceiver

import (
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/usher-rtc/usher/internal/trunk"
	"github.com/usher-rtc/usher/internal/udpbatch"
)

const (
	// sendQueue is how many frames wait for a socket: 20 ms of a thousand calls' audio.
	sendQueue = 1024
	// sendBatch is how many frames wait for others to join them at most.
	sendBatch = 64
	// spareBundles is how many datagrams' memory is kept for the next ones.
	spareBundles = 64
)

// outbox is what leaves by a shard's socket. Frames are put into datagrams as they
// come, so that each is copied once.
type outbox struct {
	// yielding is set while a goroutine that will flush lets others run first.
	yielding atomic.Bool

	queue struct {
		sync.Mutex
		bundles []*bundle // in the order of their first frames
		frames  atomic.Int32
		spare   []*bundle // used again last in, first out: what was used just now is still cached
	}

	// writing is held by whoever empties the queue.
	writing  sync.Mutex
	sending  []*bundle
	messages []udpbatch.Message
}

// bundle is a datagram for a relay.
type bundle struct {
	*trunk.Builder
	to    *peer
	bytes int // of payload
}

// enqueue copies a frame and its payload into the newest datagram for a relay, or into a new
// one. Nothing leaves before flush.
func (sh *shard) enqueue(relay netip.AddrPort, fr *trunk.Frame, payload []byte) {
	if len(payload) > slotSize {
		sh.drop(DropOversize)
		return
	}
	to := sh.host.peers.get(relay)
	if to == nil {
		sh.drop(DropSend)
		return
	}
	fr.Payload = payload
	q := &sh.queue
	q.Lock()
	defer q.Unlock()
	if q.frames.Load() == sendQueue {
		sh.drop(DropSendQueueFull)
		return
	}
	if !sh.join(to, fr) {
		b := sh.newBundle(to)
		b.Add(fr) // the first one fits
		b.bytes = len(payload)
		q.bundles = append(q.bundles, b)
	}
	q.frames.Add(1)
}

// join adds a frame to the newest datagram for its relay, if it fits there and there is
// one among the newest few. The queue's lock is held.
func (sh *shard) join(to *peer, fr *trunk.Frame) bool {
	all := sh.queue.bundles
	for i := len(all) - 1; i >= max(0, len(all)-sendBatch); i-- {
		if b := all[i]; b.to == to {
			if !b.Add(fr) {
				return false
			}
			b.bytes += len(fr.Payload)
			return true
		}
	}
	return false
}

// newBundle begins a datagram. The queue's lock is held.
func (sh *shard) newBundle(to *peer) *bundle {
	q := &sh.queue
	var b *bundle
	if n := len(q.spare); n > 0 {
		b = q.spare[n-1]
		q.spare = q.spare[:n-1]
	} else {
		b = &bundle{Builder: trunk.NewBuilder(sh.host.cfg.TrunkMTU)}
		b.CopyAll = true // Pion uses its buffer again
	}
	b.to = to
	b.Reset(&trunk.Header{}) // the true one is made when it leaves
	return b
}

// pending returns how many frames wait.
func (sh *shard) pending() int { return int(sh.queue.frames.Load()) }

// flush sends what is queued, unless another goroutine is at it: that one
// looks once more after it is done, so nothing is left behind. Whatever
// arrives while the kernel is busy goes out together in the next pass, in as
// few datagrams as it fits into.
func (sh *shard) flush() {
	for sh.pending() > 0 {
		if !sh.writing.TryLock() {
			return
		}
		for sh.pending() > 0 {
			sh.writeBatch()
		}
		sh.writing.Unlock()
	}
}

// flushSoon is flush after the goroutines that are ready to run have had their
// turn: sessions that an incoming batch woke write their answers meanwhile, and
// one system call sends them all. A Host with nothing else to do goes on at once,
// and so does one that has a full batch: after a stall the queue would overflow.
func (sh *shard) flushSoon() {
	if sh.pending() >= sendBatch {
		sh.flush()
	} else if !sh.yielding.Load() && sh.yielding.CompareAndSwap(false, true) {
		runtime.Gosched()
		sh.yielding.Store(false)
		sh.flush()
	}
}

// writeBatch sends the datagrams that are in the queue now.
func (sh *shard) writeBatch() {
	q := &sh.queue
	q.Lock()
	sh.sending, q.bundles = q.bundles, sh.sending[:0]
	q.frames.Store(0)
	q.Unlock()
	for _, b := range sh.sending {
		h := b.to.header(trunk.TypeData)
		b.SetHeader(&h)
		if b.Seal(b.to.keys) {
			sh.messages = append(sh.messages, udpbatch.Message{Buffers: b.Buffers(), To: b.to.addr})
		}
	}
	sh.conn.WriteBatch(sh.messages)
	sh.countSent()
	clear(sh.messages)
	sh.messages = sh.messages[:0]
	q.Lock()
	q.spare = append(q.spare, sh.sending[:min(len(sh.sending), spareBundles-len(q.spare))]...)
	q.Unlock()
	clear(sh.sending)
}

// countSent counts what has left and what has not, once a batch.
func (sh *shard) countSent() {
	var lost, datagrams, frames, bytes uint64
	i := 0
	for _, b := range sh.sending {
		if len(b.Buffers()) == 0 { // there is no key for it
			lost += uint64(b.Len())
			continue
		}
		if sh.messages[i].Err != nil {
			lost += uint64(b.Len())
		} else {
			datagrams++
			frames += uint64(b.Len())
			bytes += uint64(b.bytes)
		}
		i++
	}
	sh.drops[DropSend].Add(lost)
	sh.datagramsOut.Add(datagrams)
	sh.frameOut.Add(frames)
	sh.bytesOut.Add(bytes)
}
