package relay

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/usher-rtc/usher/internal/config"
)

// The conversation between a running relay and its successor, over a
// SOCK_SEQPACKET unix socket. A message is one packet of at most maxPiece bytes: a
// type and a body. Control messages have JSON bodies.
//
//	successor                     running relay
//	hello: version, configuration
//	                              offer: epoch, and the token; or refuse: field, problem
//	                              sockets, with their descriptors; several
//	take            (Serve is called)
//	                              stops reading
//	                              flows, peers, packets; several; end: counts
//	ready           (all is in place, nothing is read yet)
//	                              commit   (from here on it touches nothing)
//	(takes the token)
//	serving         (and reads from now on)
//
// Whoever has a reason to give up says abort. Before serving arrives, an abort or
// the end of the conversation makes the running relay go on as if nothing had
// been: a process that has not said serving has read no packet.
//
// The token decides who serves when one side says nothing any more, since a process
// that hangs may go on at any time, and two readers would be worse than none. It is
// an object of the kernel that only one process can take. The running relay takes it
// before it goes on after a failure, so one whose successor hangs between commit and
// serving goes on after handoverLast, and the successor finds the token gone, however
// late. A successor that sees the conversation end without a word takes it too: if it
// is there, the running relay was killed or closes, and the successor serves with
// what has come.
//
// hello and refuse never change, so that two versions can tell each other why it does
// not work.
const handoverVersion = 2

type messageType byte

const (
	msgHello messageType = iota + 1
	msgRefuse
	msgOffer
	msgSockets
	msgTake
	msgFlows
	msgPeers
	msgPackets
	msgEnd
	msgReady
	msgCommit
	msgServing
	msgAbort
)

const (
	// maxPiece fits into the smallest default send buffer with room to spare, and
	// bounds what a broken process can make us allocate.
	maxPiece = 64 << 10
	// maxRights descriptors go with one message; the kernel takes 253.
	maxRights = 128
)

// The deadlines of a hand-over.
const (
	// handoverGreeting bounds what comes before the descriptors have arrived.
	handoverGreeting = 5 * time.Second
	// handoverWait is how long a successor may be set up without being served.
	handoverWait = time.Minute
	// handoverLimit is how long the successor may take for a step, a piece of the
	// snapshot or to get ready, while nobody reads: then the running relay takes up
	// its work again. One that gets on, if slowly, is let finish within handoverMost: to
	// begin anew would take longer. A receive buffer of the default size holds the packets of a
	// usual hand-over, not those of this time at full rate.
	handoverLimit = 2 * time.Second
	// handoverMost is the most of all that together.
	handoverMost = 10 * time.Second
	// handoverLast is how long after the commit the successor may take to say that
	// it serves. It has nothing left to do but that.
	handoverLast = time.Second
)

// shape is the part of a configuration that sockets and flows depend on.
type shape struct {
	Version   int             `json:"version"`
	Cluster   uint16          `json:"cluster"`
	Workers   int             `json:"workers"`
	Trunk     netip.AddrPort  `json:"trunk"`
	Ingresses []ingressSocket `json:"ingresses"`
}

// ingressSocket is an ingress in the conversation.
type ingressSocket struct {
	ID     uint16         `json:"id"`
	Listen netip.AddrPort `json:"listen"`
}

// refusal is the body of refuse and abort.
type refusal struct {
	Field   string `json:"field,omitempty"`
	Problem string `json:"problem"`
}

type offer struct {
	Epoch uint64 `json:"epoch"`
	// Ran is how long ago the origin of the flows' times was, in nanoseconds.
	Ran time.Duration `json:"ran"`
}

// socketList says which sockets the descriptors of a message are, in their order.
type socketList struct {
	Worker    int      `json:"worker"`
	Ingresses []uint16 `json:"ingresses"`
	Trunk     bool     `json:"trunk"` // one more, the last
}

// totals are the counts of everything in a snapshot.
type totals struct {
	Flows   int `json:"flows"`
	Peers   int `json:"peers"`
	Packets int `json:"packets"`
}

// shapeOf describes a configuration with its defaults.
func shapeOf(c *Config, ingresses []Ingress) shape {
	sh := shape{Version: handoverVersion, Cluster: c.Cluster, Workers: c.Workers, Trunk: c.Trunk}
	for _, in := range ingresses {
		sh.Ingresses = append(sh.Ingresses, ingressSocket{in.ID, in.Listen})
	}
	return sh
}

// misfit returns nil if a successor of this shape can take over from a relay of
// the other, else an error that names the successor's field.
func (next *shape) misfit(running *shape) *ConfigError {
	fault := func(field, format string, args ...any) *ConfigError {
		return &ConfigError{Field: field, Problem: "does not fit the relay to take over from: " + fmt.Sprintf(format, args...)}
	}
	switch {
	case next.Version != running.Version:
		return fault("Handover", "it speaks version %d, this one %d", running.Version, next.Version)
	case next.Cluster != running.Cluster:
		return fault("Cluster", "%d here, %d there", next.Cluster, running.Cluster)
	case next.Workers != running.Workers:
		return fault("Workers", "%d here, %d there", next.Workers, running.Workers)
	case !sameAddr(next.Trunk, running.Trunk):
		return fault("Trunk", "%v here, %v there", next.Trunk, running.Trunk)
	case len(next.Ingresses) != len(running.Ingresses):
		return fault("Ingresses", "%d here, %d there", len(next.Ingresses), len(running.Ingresses))
	}
	there := make(map[uint16]netip.AddrPort)
	for _, in := range running.Ingresses {
		there[in.ID] = in.Listen
	}
	for i, in := range next.Ingresses {
		addr, ok := there[in.ID]
		switch {
		case !ok:
			return fault(fmt.Sprintf("Ingresses[%d].ID", i), "it has no ingress %d", in.ID)
		case !sameAddr(in.Listen, addr):
			return fault(fmt.Sprintf("Ingresses[%d].Listen", i), "%v here, %v there", in.Listen, addr)
		}
		delete(there, in.ID)
	}
	return nil
}

// sameAddr reports whether a socket at bound is what was wanted; port 0 wants any.
func sameAddr(wanted, bound netip.AddrPort) bool {
	return wanted.Addr().Unmap() == bound.Addr().Unmap() && (wanted.Port() == 0 || wanted.Port() == bound.Port())
}

var (
	errUnexpected = errors.New("unexpected message")
	errMalformed  = errors.New("malformed message")
)

// abortedError is what the other side gave as the reason to give up.
type abortedError struct{ refusal }

func (e *abortedError) Error() string { return "the other process gave up: " + e.Problem }

// line is one side of a conversation.
type line struct {
	conn *net.UnixConn
	in   []byte
	out  []byte
}

func newLine(conn *net.UnixConn) *line {
	return &line{conn: conn, in: make([]byte, maxPiece+1), out: make([]byte, 0, maxPiece)}
}

// send sends a message.
func (l *line) send(t messageType, body []byte, files ...*os.File) error {
	l.out = append(append(l.out[:0], byte(t)), body...)
	return sendRights(l.conn, l.out, files)
}

func (l *line) sendJSON(t messageType, v any, files ...*os.File) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(body) >= maxPiece {
		return fmt.Errorf("message %d has %d bytes", t, len(body))
	}
	return l.send(t, body, files...)
}

// receive returns the next message. Its body is valid until the next call; its
// files are the caller's.
func (l *line) receive() (t messageType, body []byte, files []*os.File, err error) {
	n, files, err := receiveRights(l.conn, l.in)
	switch {
	case err != nil:
	case n == 0:
		err = io.EOF
	case n > maxPiece:
		err = errMalformed
	case messageType(l.in[0]) == msgAbort:
		var r refusal
		if err = unmarshal(l.in[1:n], &r); err == nil {
			err = &abortedError{r}
		}
	}
	if err != nil {
		closeFiles(files)
		return 0, nil, nil, err
	}
	return messageType(l.in[0]), l.in[1:n], files, nil
}

// expect receives a message of one type, without descriptors, into v if that is
// not nil.
func (l *line) expect(t messageType, v any) error {
	got, body, files, err := l.receive()
	closeFiles(files)
	switch {
	case err != nil:
		return err
	case got != t:
		return fmt.Errorf("%w %d, want %d", errUnexpected, got, t)
	case v == nil && len(body) > 0:
		return errMalformed
	case v == nil:
		return nil
	}
	return unmarshal(body, v)
}

func unmarshal(body []byte, v any) error {
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("%w: %w", errMalformed, err)
	}
	return nil
}

// gone reports whether an error of a line means that the other side has ended the
// conversation without a word.
func gone(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
}

// abort says why this side gives up. The other side may be gone.
func (l *line) abort(why error) {
	_ = l.conn.SetWriteDeadline(time.Now().Add(handoverLast))
	_ = l.sendJSON(msgAbort, refusal{Problem: why.Error()})
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// validateHandover checks what can be checked before the path is used.
func (c *Config) validateHandover() error {
	const maxPath = 100 // sun_path has 108, and a suffix is added while binding
	switch {
	case c.Handover == "":
		return nil
	case !handoverSupported:
		return config.Errorf("Handover", "needs Linux: descriptors cannot be passed on here")
	case c.Handover[0] == '@':
		return config.Errorf("Handover", "%q is an abstract socket, which has no permissions", c.Handover)
	case len(c.Handover) > maxPath:
		return config.Errorf("Handover", "the path has %d bytes, more than %d", len(c.Handover), maxPath)
	}
	return nil
}
