package peers

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/usher-rtc/usher/internal/bench/load"
	"github.com/usher-rtc/usher/internal/parts"
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
	parts.Need(t, errors.Join(parts.Root("a raw socket"), parts.Program("taskset", "util-linux")))
	// The process that a thread starts ends with it.
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	env := &Env{CPUs: "0", Workers: 1, Dir: t.TempDir(), Exe: exe}
	env.Raw, err = load.NewRaw()
	parts.Need(t, err)
	t.Cleanup(func() { env.Raw.Close() })
	sink := func() *load.Sink {
		s, err := load.NewSink()
		parts.Need(t, err)
		t.Cleanup(func() { s.Close() })
		return s
	}
	env.Clients = sink()
	for range hosts {
		env.Upstreams = append(env.Upstreams, sink())
	}
	return env
}

// pollAll receives until all is there, and then for a moment what is too much.
func pollAll(poll func() int, all func() bool) {
	for end := time.Now().Add(time.Minute); !all() && time.Now().Before(end); {
		pollUntilQuiet(poll, 10*time.Millisecond)
	}
	pollUntilQuiet(poll, 100*time.Millisecond)
}

// packages are Debian's of the programs that are peers.
var packages = map[string]string{"nginx": "nginx", "turnserver": "coturn"}

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
				parts.Need(t, parts.Program(c.program, packages[c.program]))
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
	pollAll(func() int {
		k := env.Clients.Recv()
		for i := range k {
			if c, _, ok := ParsePayload(env.Clients.Data(i)); ok {
				seen[c] = true
			}
		}
		return k
	}, func() bool { return len(seen) >= 3 })
	if len(seen) != 3 || seen[1] {
		t.Errorf("packets of clients %v arrived", seen)
	}
}

func TestNFTForwards(t *testing.T) {
	parts.Need(t, errors.Join(parts.Root("a network namespace"), parts.Program("ip", "iproute2"), parts.Program("nft", "nftables")))
	n, err := StartNFT(fmt.Sprintf("t%d", os.Getpid()))
	parts.Need(t, err)
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
		pollAll(func() int { k := n.Received(); got += k; return k }, func() bool { return got >= 20 })
		if got != 20 {
			t.Errorf("%s: %d of 20 packets arrived", c.name, got)
		}
	}
}

// Each pattern of system calls brings its packets to where they belong.
func TestFloorsForward(t *testing.T) {
	parts.Need(t, parts.Program("gcc", "gcc"))
	for name, f := range map[string]Floor{
		"receive one":    {Count: true, OneIn: true},
		"receive many":   {Count: true},
		"send one":       {Amplify: true, OneOut: true},
		"send many":      {Amplify: true, Fragment: true},
		"send bundles":   {Amplify: true, Bundle: true},
		"forward":        {OneIn: true, OneOut: true},
		"up":             {Bundle: true},
		"down, in parts": {Split: true},
	} {
		t.Run(name, func(t *testing.T) {
			f.Name = name
			env := testEnv(t, 1)
			p := NewFloor(f)
			if err := p.Start(env); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = p.Stop() }()
			if err := p.Establish(1); err != nil {
				t.Fatal(err)
			}
			if !f.Split {
				return
			}
			// A bundle's payloads go to the client that each one names.
			var payloads [][]byte
			for c := range floorBundle {
				b := make([]byte, FloorSize)
				PutPayload(b, 300+c, 1, 0)
				payloads = append(payloads, b)
			}
			n, used, src, dst := p.Down(env.Raw.Buffer(), nil, payloads)
			if used != floorBundle {
				t.Fatalf("%d of %d payloads in a bundle", used, floorBundle)
			}
			env.Raw.Push(src, dst, n)
			env.Raw.Flush()
			var got []int
			pollAll(func() int {
				k := env.Clients.Recv()
				for i := range k {
					c, _, _ := ParsePayload(env.Clients.Data(i))
					got = append(got, c)
				}
				return k
			}, func() bool { return len(got) >= floorBundle })
			if len(got) != floorBundle || got[0] != 300 || got[floorBundle-1] != 300+floorBundle-1 {
				t.Errorf("payloads of clients %v arrived", got)
			}
		})
	}
}

// A relay that was started for it gives a profile.
func TestUsherIsProfiled(t *testing.T) {
	env := testEnv(t, 1)
	p := NewProfiledUsher()
	if err := p.Start(env); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Stop() }()
	if err := p.Establish(4); err != nil {
		t.Fatal(err)
	}
	resp, err := http.Get(p.ProfileURL(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if b, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK || len(b) == 0 {
		t.Errorf("%s, %d bytes, %v", resp.Status, len(b), err)
	}
}
