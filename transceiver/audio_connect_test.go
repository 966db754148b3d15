package transceiver

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/pion/rtp"
)

// lockedWriter is an rtpWriter that takes a lock of its own, as Pion's does
// while there is no SRTP.
type lockedWriter struct {
	mu      sync.Mutex
	waiting chan struct{}
}

func (w *lockedWriter) WriteRTP(*rtp.Header, []byte) (int, error) {
	w.waiting <- struct{}{}
	w.mu.Lock()
	defer w.mu.Unlock()
	return 0, nil
}

// TestConnectingWhileAFrameIsWritten: Pion says with its lock held that DTLS is
// up, and takes the same lock when a packet is written before that.
func TestConnectingWhileAFrameIsWritten(t *testing.T) {
	o, _, _ := newTestOut(newPacer(time.Now(), &recorder{began: time.Now()}), AudioConfig{})
	w := &lockedWriter{waiting: make(chan struct{}, 1)}
	o.bind(w, 1, 111)
	w.mu.Lock()
	written, connected := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(written)
		if err := o.write(context.Background(), frame(1)); err != nil {
			t.Error(err)
		}
	}()
	wait(t, "the write", w.waiting)
	go func() {
		defer close(connected)
		o.kick()
		w.mu.Unlock()
	}()
	wait(t, "the end of the handshake", connected)
	wait(t, "the write to return", written)
}
