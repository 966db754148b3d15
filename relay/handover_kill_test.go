package relay

import (
	"bufio"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/usher-rtc/usher/internal/trunk"
)

const doomedEnv = "USHER_TEST_DOOMED_RELAY"

// TestDoomedRelay is the process that TestPredecessorIsKilledAtAnyTime kills, and
// nothing in any other process.
func TestDoomedRelay(t *testing.T) {
	path := os.Getenv(doomedEnv)
	if path == "" {
		return
	}
	cfg := config4(keyring(t, "a"))
	cfg.Handover = path
	srv, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println(srv.Ingresses()[0].Listen)
	if err := srv.Serve(); !errors.Is(err, ErrHandedOver) {
		t.Fatal(err)
	}
}

// TestPredecessorIsKilledAtAnyTime kills running relays while a successor takes over,
// a little later each time. The successor has the sockets, so clients are served
// whether the hand-over came to its end or not.
func TestPredecessorIsKilledAtAnyTime(t *testing.T) {
	needHandover(t)
	const rounds = 16
	whole := 0
	for i := range rounds {
		path := filepath.Join(t.TempDir(), "relay.sock")
		doomed := exec.Command(os.Args[0], "-test.run=^TestDoomedRelay$", "-test.timeout=1m")
		doomed.Env = append(os.Environ(), doomedEnv+"="+path)
		out, err := doomed.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := doomed.Start(); err != nil {
			t.Fatal(err)
		}
		end := func() {
			_ = doomed.Process.Kill()
			_ = doomed.Wait()
		}
		t.Cleanup(end)
		line, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		listen, err := netip.ParseAddrPort(line[:len(line)-1])
		if err != nil {
			t.Fatal(err)
		}

		cfg := config4(keyring(t, "a"))
		cfg.Handover, cfg.Ingresses[0].Listen = path, listen
		heir, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		b := &bench{t: t, ring: cfg.TrunkKeys, srv: heir, done: make(chan error, 1)}
		h := b.host(nil)
		c := b.client("127.0.1.5", 0)
		id := h.mint()
		c.send(id.check())
		h.reply(h.want(c.addr()), trunk.Validated, "hello")
		c.want("hello")

		before := heir.epoch
		go func() { b.done <- heir.Serve() }()
		time.Sleep(time.Duration(i) * 200 * time.Microsecond)
		end()
		b.eventually(func() error {
			select {
			case err := <-b.done:
				t.Fatalf("round %d: the successor gave up: %v", i, err)
			default:
			}
			if !heir.healthy() {
				return errors.New("the successor does not serve")
			}
			return nil
		})
		if heir.epoch == before {
			whole++
		}
		c.send(id.check()) // the flow may have gone with the dead process
		h.want(c.addr())
		b.alive()
		if err := heir.Close(); err != nil {
			t.Error(err)
		}
		if err := <-b.done; !errors.Is(err, ErrServerClosed) {
			t.Errorf("Serve: %v", err)
		}
	}
	t.Logf("%d of %d successors got everything", whole, rounds)
}
