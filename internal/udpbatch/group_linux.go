package udpbatch

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func ptr[T any](p *T) unsafe.Pointer { return unsafe.Pointer(p) }

// newServer picks the path: batched if all sockets are.
func newServer(conns []*Conn, cfg GroupConfig) (server, error) {
	for _, c := range conns {
		if _, ok := c.t.(*mmsgConn); !ok {
			return newPortableServer(conns)
		}
	}
	return newEpollServer(conns, cfg)
}

// epollServer serves batched sockets with one thread.
type epollServer struct {
	conns []*mmsgConn
	in    *receiver
	// coarse says that the kernel has no epoll_pwait2.
	coarse bool
	events []unix.EpollEvent
	shared *sharedWait // nil: the thread is ours

	interval time.Duration
	lastRead time.Time
	polling  bool // the loop is busy: it reads at intervals and waits for no event

	stopping atomic.Bool
	// woken is set from a wake until the loop has seen it, so that many wakes cost one
	// system call.
	woken atomic.Bool

	mu      sync.Mutex // guards the descriptors against use after release
	epfd    int
	eventfd int
}

const wakeIndex = -1 // stands for the eventfd among the events

func newEpollServer(conns []*Conn, cfg GroupConfig) (_ *epollServer, err error) {
	s := &epollServer{
		in:       newReceiver(cfg.Batch),
		events:   make([]unix.EpollEvent, len(conns)+1),
		interval: cfg.Interval,
		epfd:     -1,
		eventfd:  -1,
	}
	defer func() {
		if err != nil {
			s.release()
			err = fmt.Errorf("udpbatch: %w", err)
		}
	}()
	if s.epfd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if s.eventfd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: wakeIndex}
	if err = unix.EpollCtl(s.epfd, unix.EPOLL_CTL_ADD, s.eventfd, &ev); err != nil {
		return nil, os.NewSyscallError("epoll_ctl", err)
	}
	if cfg.Shared {
		if s.shared, err = newSharedWait(s); err != nil {
			return nil, err
		}
	}
	for i, c := range conns {
		m := c.t.(*mmsgConn)
		if err = m.watch(s.epfd, i); err != nil {
			return nil, err
		}
		s.conns = append(s.conns, m)
	}
	return s, nil
}

func (s *epollServer) serve(h Handler) {
	if s.shared == nil {
		// A thread that changes hands costs a wake-up of the scheduler for each wait.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
	}
	fails := 0 // rounds in which sockets reported nothing but errors
	full := false
	for !s.stopping.Load() {
		n := s.ready(h.Idle(time.Now()), full)
		received, failed := false, false
		full = false
		for _, ev := range s.events[:n] {
			if ev.Fd == wakeIndex {
				s.drainWakes()
				continue
			}
			if s.stopping.Load() {
				break // what is queued is for whoever has the sockets next
			}
			got, errno := s.in.read(s.conns[ev.Fd])
			if got > 0 {
				received = true
				full = full || got == len(s.in.hdrs)
				s.in.deliver(s.conns[ev.Fd], int(ev.Fd), got, h)
			}
			failed = failed || errno != 0
		}
		if s.interval > 0 {
			s.setPolling(received)
		}
		switch {
		case received || !failed:
			fails = 0
		default:
			if fails++; fails > maxReadFailures {
				time.Sleep(readPause)
			}
		}
	}
}

// ready returns how many events there are to look at: after at most d (<= 0:
// for ever) those that the kernel reports, or, while the loop polls, all sockets
// at the end of the interval. full says that the last read has left something.
func (s *epollServer) ready(d time.Duration, full bool) int {
	if !s.polling {
		if s.shared != nil {
			return s.shared.wait(d)
		}
		return s.wait(d)
	}
	if rest := s.interval - time.Since(s.lastRead); rest > 0 && !full {
		if d > 0 {
			rest = min(rest, d)
		}
		s.rest(rest)
	}
	s.lastRead = time.Now()
	for i := range s.conns {
		s.events[i].Fd = int32(i)
	}
	n := len(s.conns)
	if s.woken.Load() {
		s.events[n].Fd = wakeIndex
		n++
	}
	return n
}

// rest sleeps in the way of the loop: where it waits for packets, too.
func (s *epollServer) rest(d time.Duration) {
	if s.shared != nil {
		time.Sleep(d)
		return
	}
	left := unix.NsecToTimespec(int64(d))
	for unix.Nanosleep(&left, &left) == unix.EINTR {
	}
}

// setPolling decides after each round how to wait for the next. Two rounds with
// packets within an interval make a loop busy; one without ends it.
func (s *epollServer) setPolling(received bool) {
	if s.polling {
		if received {
			return
		}
		s.polling = false
	} else {
		if !received {
			return
		}
		now := time.Now()
		s.polling = now.Sub(s.lastRead) < s.interval
		s.lastRead = now
		if !s.polling {
			return
		}
	}
	if s.shared != nil {
		// Go's poller would be woken by every packet, whether or not we wait.
		for i, c := range s.conns {
			c.mute(i, s.polling)
		}
	}
}

// wait waits for events and returns their number.
func (s *epollServer) wait(d time.Duration) int {
	for {
		n, errno := s.epollWait(d)
		switch errno {
		case 0:
			return n
		case unix.ENOSYS:
			if s.coarse {
				panic("udpbatch: the kernel has no epoll_pwait")
			}
			s.coarse = true
		case unix.EINTR:
			return 0 // Idle works out anew how long to wait
		default:
			// The descriptors and buffers are ours: only a bug leads here.
			panic("udpbatch: epoll_pwait: " + errno.Error())
		}
	}
}

// epollWait tells the scheduler that it may block (Syscall6), so that a
// collection need not wait for it.
func (s *epollServer) epollWait(d time.Duration) (int, unix.Errno) {
	events := uintptr(unsafe.Pointer(&s.events[0]))
	if s.coarse {
		ms := -1
		if d > 0 {
			const longest = 1 << 30
			ms = int(min((d+time.Millisecond-1)/time.Millisecond, longest))
		}
		n, _, errno := unix.Syscall6(unix.SYS_EPOLL_PWAIT, uintptr(s.epfd), events, uintptr(len(s.events)), uintptr(ms), 0, 0)
		return int(n), errno
	}
	// struct __kernel_timespec is 64 bits wide on every machine.
	var ts *[2]int64
	if d > 0 {
		ts = &[2]int64{int64(d / time.Second), int64(d % time.Second)}
	}
	n, _, errno := unix.Syscall6(unix.SYS_EPOLL_PWAIT2, uintptr(s.epfd), events, uintptr(len(s.events)), uintptr(unsafe.Pointer(ts)), 0, 0)
	return int(n), errno
}

func (s *epollServer) wake() {
	if s.woken.Swap(true) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.eventfd >= 0 {
		one := [8]byte{1}                    // any number but 0, in either byte order
		_, _ = unix.Write(s.eventfd, one[:]) // it fails only when a wake is pending
	}
}

// drainWakes resets the eventfd first and woken second: a wake in between
// writes nothing, and the Idle to come is after it.
func (s *epollServer) drainWakes() {
	var count [8]byte
	_, _ = unix.Read(s.eventfd, count[:]) // epoll said that there is something
	s.woken.Store(false)
}

func (s *epollServer) stop() {
	s.stopping.Store(true)
	s.wake()
}

func (s *epollServer) release() {
	for _, c := range s.conns {
		c.rmu.Lock()
		c.unwatch()
		c.rmu.Unlock()
	}
	if s.shared != nil {
		_ = s.shared.file.Close() // a duplicate: nothing can be lost
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, fd := range []int{s.eventfd, s.epfd} {
		if fd >= 0 {
			_ = unix.Close(fd) // nothing can be lost
		}
	}
	s.eventfd, s.epfd = -1, -1
}
