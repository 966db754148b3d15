package transceiver

import (
	"encoding/binary"
	"io"
	"os"
	"sync"
	"time"

	"github.com/pion/transport/v5/packetio"
)

const (
	// firstMediaBytes holds what waits for a reader that keeps up: a packet or two.
	firstMediaBytes = 512
	// maxMediaBytes is what an unread stream may hold: 25 s of Opus at 64 kbit/s.
	// Later packets are dropped.
	maxMediaBytes = 256 << 10
	packetPrefix  = 2 // the length in front of each packet
)

// mediaBuffer holds the decrypted packets of one SSRC until they are read. It
// is what Pion's own buffer is, smaller and with less to do for each packet.
// Methods are safe for concurrent use.
type mediaBuffer struct {
	mu         sync.Mutex
	ready      sync.Cond
	ring       []byte
	head, size int
	closed     bool
	deadline   time.Time
	alarm      *time.Timer
	bounds     *bounds
}

// newMediaBuffer is for webrtc.SettingEngine.BufferFactory.
func (b *bounds) newMediaBuffer(packetio.BufferPacketType, uint32) io.ReadWriteCloser {
	b.stream(1)
	m := &mediaBuffer{bounds: b}
	m.ready.L = &m.mu
	return m
}

// Write implements io.Writer: b is one packet, which is copied. It never
// blocks; packetio.ErrFull tells Pion that the packet is lost.
func (m *mediaBuffer) Write(b []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return 0, io.ErrClosedPipe
	}
	need := m.size + packetPrefix + len(b)
	if need > maxMediaBytes || len(b) > 1<<16-1 {
		return 0, packetio.ErrFull
	}
	if need > len(m.ring) && !m.grow(need) {
		return 0, packetio.ErrFull
	}
	var prefix [packetPrefix]byte
	binary.BigEndian.PutUint16(prefix[:], uint16(len(b)))
	m.put(prefix[:])
	m.put(b)
	m.ready.Signal()
	return len(b), nil
}

// grow makes room, if the session may have that much more memory.
func (m *mediaBuffer) grow(need int) bool {
	n := max(firstMediaBytes, 2*len(m.ring))
	for n < need {
		n *= 2
	}
	if !m.bounds.hold(n - len(m.ring)) {
		return false
	}
	ring := make([]byte, n)
	m.copyOut(ring[:m.size], m.head)
	m.ring, m.head = ring, 0
	return true
}

// put appends bytes, for which there is room.
func (m *mediaBuffer) put(b []byte) {
	at := (m.head + m.size) % len(m.ring)
	n := copy(m.ring[at:], b)
	copy(m.ring, b[n:])
	m.size += len(b)
}

// copyOut copies len(b) bytes of the ring, from a position on.
func (m *mediaBuffer) copyOut(b []byte, at int) {
	if len(b) > 0 {
		n := copy(b, m.ring[at:])
		copy(b[n:], m.ring)
	}
}

// Read implements io.Reader: it returns one packet, waiting for it until the
// deadline or Close. A packet longer than b is lost with io.ErrShortBuffer. What
// was written before Close can still be read.
func (m *mediaBuffer) Read(b []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for {
		switch {
		case !m.deadline.IsZero() && !time.Now().Before(m.deadline):
			return 0, os.ErrDeadlineExceeded
		case m.size > 0:
			return m.take(b)
		case m.closed:
			return 0, io.EOF
		}
		m.ready.Wait()
	}
}

func (m *mediaBuffer) take(b []byte) (int, error) {
	var prefix [packetPrefix]byte
	m.copyOut(prefix[:], m.head)
	size := int(binary.BigEndian.Uint16(prefix[:]))
	n := min(size, len(b))
	m.copyOut(b[:n], (m.head+packetPrefix)%len(m.ring))
	m.head = (m.head + packetPrefix + size) % len(m.ring)
	m.size -= packetPrefix + size
	if n < size {
		return n, io.ErrShortBuffer
	}
	return n, nil
}

// Close implements io.Closer. It unblocks readers.
func (m *mediaBuffer) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.closed {
		m.bounds.release(len(m.ring))
		m.bounds.stream(-1)
	}
	m.closed = true
	if m.alarm != nil {
		m.alarm.Stop()
	}
	m.ready.Broadcast()
	return nil
}

// SetReadDeadline makes reads fail from a time on; the zero time lifts it.
func (m *mediaBuffer) SetReadDeadline(t time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.alarm != nil {
		m.alarm.Stop()
		m.alarm = nil
	}
	m.deadline = t
	if !t.IsZero() && !m.closed {
		m.alarm = time.AfterFunc(time.Until(t), func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.ready.Broadcast()
		})
	}
	return nil
}
