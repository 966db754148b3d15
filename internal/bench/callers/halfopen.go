package callers

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/pion/stun/v3"
)

// halfOpen makes a session that gets no further than an offer or, with check
// set, an authenticated check.
func (f *Fleet) halfOpen(ctx context.Context, check bool) error {
	c, err := f.engine.New(Options{})
	if err != nil {
		return err
	}
	defer c.Close()
	offer, err := c.Offer()
	if err != nil {
		return err
	}
	_, answer, err := Post(ctx, f.Server, offer)
	if err != nil || !check {
		return err
	}
	return oneCheck(ctx, offer, answer)
}

// checkTries bounds the checks that are sent until one is answered.
const checkTries = 20

// oneCheck sends a connectivity check to where an answer says.
func oneCheck(ctx context.Context, offer, answer string) error {
	fields := strings.Fields(attribute(answer, "candidate"))
	if len(fields) < 6 {
		return errors.New("the answer has no candidate")
	}
	// From an address of its own: the session lives on for seconds, and must not say
	// anything to the next call that gets the port.
	dialer := net.Dialer{LocalAddr: &net.UDPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	conn, err := dialer.DialContext(ctx, "udp4", net.JoinHostPort(fields[4], fields[5]))
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = Check(conn, offer, answer)
	return err
}

// Check sends a connectivity check over a UDP connection until it is answered,
// and returns the round trip of the one that was. It answers none of the server's
// own. The caller closes the connection.
func Check(conn net.Conn, offer, answer string) (time.Duration, error) {
	m, err := stun.Build(stun.TransactionID, stun.BindingRequest,
		stun.NewUsername(attribute(answer, "ice-ufrag")+":"+attribute(offer, "ice-ufrag")),
		stun.RawAttribute{Type: stun.AttrPriority, Value: []byte{0x6e, 0x7f, 0xff, 0xff}},
		stun.RawAttribute{Type: stun.AttrICEControlling, Value: []byte(rand.Text()[:8])},
		stun.RawAttribute{Type: stun.AttrUseCandidate},
		stun.NewShortTermIntegrity(attribute(answer, "ice-pwd")), stun.Fingerprint)
	if err != nil {
		return 0, err
	}
	buf := make([]byte, 1500)
	for range checkTries {
		begin := time.Now()
		if _, err := conn.Write(m.Raw); err != nil {
			return 0, err
		}
		if err := conn.SetReadDeadline(begin.Add(250 * time.Millisecond)); err != nil {
			return 0, err
		}
		for {
			n, err := conn.Read(buf)
			if err != nil {
				break // send it again
			}
			r := &stun.Message{Raw: append([]byte(nil), buf[:n]...)}
			if stun.IsMessage(r.Raw) && r.Decode() == nil && r.Type == stun.BindingSuccess {
				return time.Since(begin), nil
			}
		}
	}
	return 0, fmt.Errorf("no answer to %d checks", checkTries)
}
