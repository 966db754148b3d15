// Package tail keeps the end of what a child process writes, for the error if it
// fails. It owns no process.
package tail

import "sync"

// size is enough for the stack of a panic.
const size = 32 << 10

// Buffer is an io.Writer that keeps the last 32 KiB. It is safe for concurrent use;
// its zero value is empty.
type Buffer struct {
	mu sync.Mutex
	b  []byte
}

// Write implements io.Writer. The error is nil.
func (t *Buffer) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if over := len(t.b) - size; over > 0 {
		t.b = append(t.b[:0], t.b[over:]...)
	}
	return len(p), nil
}

// String returns what is kept.
func (t *Buffer) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.b)
}
