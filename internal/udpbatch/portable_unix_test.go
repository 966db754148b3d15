//go:build !windows

package udpbatch

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
)

// An error of an earlier datagram is not charged to the next; one that stays
// is charged, and nothing is tried for ever.
func TestPortableRefusedIsRetriedOnce(t *testing.T) {
	for _, tc := range []struct {
		fails, lost int
		errno       syscall.Errno
	}{
		{1, 0, syscall.ECONNREFUSED},
		{2, 1, syscall.ECONNREFUSED},
		{1, 1, syscall.EPERM},
		{1, 1, syscall.ENOBUFS},
	} {
		u := client(t, "127.0.0.1:0")
		pc := client(t, "127.0.0.1:0")
		c, err := NewConn(&oddConn{
			onlyPacketConn: onlyPacketConn{pc}, fails: tc.fails,
			err: &net.OpError{Op: "write", Err: os.NewSyscallError("sendto", tc.errno)},
		})
		if err != nil {
			t.Fatal(err)
		}
		ms := []Message{message(addrOf(u), []byte("first")), message(addrOf(u), []byte("second"))}
		if sent := c.WriteBatch(ms); sent != 2-tc.lost {
			t.Errorf("%v: sent %d", tc, sent)
		}
		if tc.lost > 0 && !errors.Is(ms[0].Err, tc.errno) {
			t.Errorf("%v: %v", tc, ms[0].Err)
		}
		if n := c.Stats().WriteErrors.Total(); n != uint64(tc.lost) {
			t.Errorf("%v: %d counted", tc, n)
		}
		_ = c.Close()
	}
}
