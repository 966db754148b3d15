package peers

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"github.com/usher-rtc/usher/internal/bench/load"
)

// The peers written in Go run this test program in a role.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		if err := Serve(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func testEnv(t *testing.T, hosts int) *Env {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root for a raw socket")
	}
	need(t, "taskset")
	// The process that a thread starts ends with it.
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	env := &Env{CPUs: "0", Workers: 1, Dir: t.TempDir(), Exe: exe}
	if env.Raw, err = load.NewRaw(); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { env.Raw.Close() })
	sink := func() *load.Sink {
		s, err := load.NewSink()
		if err != nil {
			t.Skip(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	env.Clients = sink()
	for range hosts {
		env.Upstreams = append(env.Upstreams, sink())
	}
	return env
}

func need(t *testing.T, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		if os.Getenv("USHER_REQUIRE_PARTS") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

// Every peer takes in its clients and carries their packets both ways; that is
// the precondition of every figure.
func TestPeersForward(t *testing.T) {
	for _, c := range []struct {
		peer    Peer
		program string
		hosts   int
	}{
		{NewUsher("usher", 0), "", 3},
		{NewUsher("usher-500us", 500*time.Microsecond), "", 1},
		{NewNginx(false), "nginx", 1},
		{NewNginx(true), "nginx", 1},
		{NewCoturn(), "turnserver", 1},
		{NewPionTURN(), "", 1},
		{NewNaive(), "", 1},
		{NewC(), "gcc", 1},
	} {
		t.Run(c.peer.Name(), func(t *testing.T) {
			if c.program != "" {
				need(t, c.program)
			}
			env := testEnv(t, c.hosts)
			if err := c.peer.Start(env); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = c.peer.Stop() }()
			// More clients later are the same as all at once.
			for _, n := range []int{8, 70} {
				if err := c.peer.Establish(n); err != nil {
					t.Fatal(err)
				}
			}
			if cpu, err := c.peer.Process().CPU(); err != nil || cpu <= 0 {
				t.Errorf("processor time %v, %v", cpu, err)
			}
		})
	}
}

// Several payloads that are due at once share a trunk datagram, but only those
// of one Host and worker, and all of them arrive at their clients.
func TestUsherBundlesDownlink(t *testing.T) {
	env := testEnv(t, 2)
	p := NewUsher("usher", 0)
	if err := p.Start(env); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Stop() }()
	if err := p.Establish(8); err != nil {
		t.Fatal(err)
	}
	var payloads [][]byte
	clients := []int{0, 2, 4, 1} // clients alternate between the Hosts
	for _, c := range clients {
		b := make([]byte, 160)
		PutPayload(b, c, 1, 0)
		payloads = append(payloads, b)
	}
	n, used, src, dst := p.Down(env.Raw.Buffer(), clients, payloads)
	if used != 3 || src != env.HostAddr(0) {
		t.Fatalf("used %d from %v", used, src)
	}
	env.Raw.Push(src, dst, n)
	env.Raw.Flush()
	seen := make(map[int]bool)
	pollUntilQuiet(func() int {
		k := env.Clients.Recv()
		for i := range k {
			if c, _, ok := ParsePayload(env.Clients.Data(i)); ok {
				seen[c] = true
			}
		}
		return k
	}, 500*time.Millisecond)
	if len(seen) != 3 || seen[1] {
		t.Errorf("packets of clients %v arrived", seen)
	}
}

func TestNFTForwards(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root for network namespaces")
	}
	need(t, "ip")
	need(t, "nft")
	n, err := StartNFT(fmt.Sprintf("t%d", os.Getpid()))
	if err != nil {
		t.Skip(err)
	}
	defer n.Stop()
	if err := n.Establish(20); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name         string
		down, routed bool
	}{{"up", false, true}, {"down", true, true}, {"up direct", false, false}, {"down direct", true, false}} {
		payload := make([]byte, 64)
		for i := range 20 {
			n.Send(c.down, c.routed, i, payload)
		}
		n.Flush()
		got := 0
		pollUntilQuiet(func() int { k := n.Received(); got += k; return k }, 100*time.Millisecond)
		if got != 20 {
			t.Errorf("%s: %d of 20 packets arrived", c.name, got)
		}
	}
}
