package transceiver

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pion/transport/v5/packetio"

	"github.com/usher-rtc/usher/internal/race"
)

func TestMediaBufferIsAQueueOfPackets(t *testing.T) {
	m := new(bounds).newMediaBuffer(packetio.RTPBufferPacket, 1)
	random := rand.New(rand.NewPCG(1, 2))
	var want [][]byte
	held := 0
	b := make([]byte, 2000)
	for range 20_000 {
		if random.IntN(100) < 51 {
			p := make([]byte, random.IntN(1500))
			for i := range p {
				p[i] = byte(random.Uint32())
			}
			n, err := m.Write(p)
			if held+packetPrefix+len(p) > maxMediaBytes {
				if !errors.Is(err, packetio.ErrFull) {
					t.Fatalf("a full buffer took %d bytes: %v", len(p), err)
				}
				continue
			}
			if n != len(p) || err != nil {
				t.Fatalf("Write = %d, %v", n, err)
			}
			want, held = append(want, p), held+packetPrefix+len(p)
			continue
		}
		if len(want) == 0 {
			continue
		}
		n, err := m.Read(b)
		if err != nil || !bytes.Equal(b[:n], want[0]) {
			t.Fatalf("Read = %x, %v, want %x", b[:n], err, want[0])
		}
		want, held = want[1:], held-packetPrefix-len(want[0])
	}
	if _, err := m.Write(make([]byte, 1<<16)); !errors.Is(err, packetio.ErrFull) {
		t.Errorf("a packet that is longer than its length can say: %v", err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Write([]byte{1}); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("Write after Close: %v", err)
	}
	for _, p := range want {
		if n, err := m.Read(b); err != nil || !bytes.Equal(b[:n], p) {
			t.Fatalf("after Close: %x, %v, want %x", b[:n], err, p)
		}
	}
	if _, err := m.Read(b); !errors.Is(err, io.EOF) {
		t.Errorf("Read at the end: %v", err)
	}
}

func TestMediaBufferShortRead(t *testing.T) {
	m := new(bounds).newMediaBuffer(packetio.RTPBufferPacket, 1)
	for _, p := range []string{"long packet", "next"} {
		if _, err := m.Write([]byte(p)); err != nil {
			t.Fatal(err)
		}
	}
	b := make([]byte, 4)
	if n, err := m.Read(b); n != 4 || !errors.Is(err, io.ErrShortBuffer) {
		t.Errorf("Read = %d, %v", n, err)
	}
	if n, err := m.Read(b); string(b[:n]) != "next" || err != nil {
		t.Errorf("Read = %q, %v", b[:n], err)
	}
}

func TestMediaBufferReadsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _ := new(bounds).newMediaBuffer(packetio.RTCPBufferPacket, 1).(*mediaBuffer)
		b := make([]byte, 10)
		read := func() <-chan error {
			done := make(chan error, 1)
			go func() {
				_, err := m.Read(b)
				done <- err
			}()
			synctest.Wait()
			return done
		}
		done := read()
		if _, err := m.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Errorf("after Write: %v", err)
		}

		done = read()
		start := time.Now()
		if err := m.SetReadDeadline(start.Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		if err := <-done; !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("at the deadline: %v after %v", err, time.Since(start))
		}
		if err := <-read(); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("past the deadline: %v", err)
		}
		if err := m.SetReadDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}

		done = read()
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-done; !errors.Is(err, io.EOF) {
			t.Errorf("after Close: %v", err)
		}
	})
}

func TestMediaBufferAllocates(t *testing.T) {
	race.NoAllocs(t)
	m := new(bounds).newMediaBuffer(packetio.RTPBufferPacket, 1)
	b := make([]byte, 200)
	allocs := testing.AllocsPerRun(1000, func() {
		if _, err := m.Write(b); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Read(b); err != nil {
			t.Fatal(err)
		}
	})
	if allocs > 0 {
		t.Errorf("%v allocations a packet", allocs)
	}
}
