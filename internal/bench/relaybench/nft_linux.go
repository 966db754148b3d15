package main

import (
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"github.com/usher-rtc/usher/internal/bench/load"
	"github.com/usher-rtc/usher/internal/bench/peers"
)

// router is nftables in namespaces, or nothing if that cannot be had here.
type router struct {
	nft         *peers.NFT
	ksoftirqd   int
	established int
}

// startNft starts the router if it was asked for.
func (b *bench) startNft(round int) *router {
	if !b.peer("nft") {
		return nil
	}
	if b.env.Softirq == 0 {
		progress("nft: left out: no softirq thread of processor %d in /proc", b.genCPU)
		return nil
	}
	n, err := peers.StartNFT(fmt.Sprintf("%d-%d", os.Getpid(), round))
	if err != nil {
		progress("nft: left out: %v", err)
		return nil
	}
	return &router{nft: n, ksoftirqd: b.env.Softirq}
}

func (r *router) stop() {
	if r != nil {
		r.nft.Stop()
	}
}

// measureNft adds a sample of the router: what the sending processor spends
// on packets through it, less what it spends on the same by the direct link.
func (b *bench) measureNft(r *router, c cell, round int) {
	if r == nil || b.stopped.Load() {
		return
	}
	if r.established < c.clients {
		if err := r.nft.Establish(c.clients); err != nil {
			progress("%v", err)
			return
		}
		r.established = c.clients
	}
	f, err := r.measure(c, b.fill, b.fills)
	if err != nil {
		progress("nft: %v: %v", c, err)
		return
	}
	b.results.add(c, "nft", round, f)
}

func (r *router) measure(c cell, fill, fills int) (figure, error) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	var used [2]time.Duration // direct, routed
	var sent, received [2]int
	next := uint32(0)
	for i := range fills + 1 {
		for path := range 2 {
			before, err := r.cpu()
			if err != nil {
				return figure{}, err
			}
			r.send(c, path == 1, fill, next)
			after, err := r.cpu()
			if err != nil {
				return figure{}, err
			}
			got := r.drainSinks()
			if i > 0 { // the first fill warms up
				used[path] += after - before
				sent[path] += fill
				received[path] += got
			}
		}
		next += uint32(fill)
	}
	if received[0] == 0 || received[1] == 0 {
		return figure{}, errNothing
	}
	each := used[1].Seconds()/float64(received[1]) - used[0].Seconds()/float64(received[0])
	if each <= 0 {
		return figure{}, fmt.Errorf("the direct path cost as much: too noisy")
	}
	return figure{perSecond: 1 / each, loss: 1 - float64(received[1])/float64(sent[1])}, nil
}

// cpu is the time of this thread, softirqs that it was interrupted by
// included, and of the processor's softirq thread.
func (r *router) cpu() (time.Duration, error) {
	mine, err := load.ThreadCPU()
	if err != nil {
		return 0, err
	}
	soft, err := load.TaskCPU(r.ksoftirqd)
	return mine + soft, err
}

func (r *router) send(c cell, routed bool, fill int, next uint32) {
	var payload [burstSize]byte
	group := uint32(c.sizes.group())
	for i := range uint32(fill) {
		g := (next + i) / group
		down := c.dir == downlink
		if c.dir == both {
			down = g%2 == 1
			g /= 2
		}
		client := int(g) % c.clients
		b := payload[:c.sizes.size(next+i)]
		peers.PutPayload(b, client, uint16(i), 0)
		r.nft.Send(down, routed, client, b)
	}
	r.nft.Flush()
}

func (r *router) drainSinks() int {
	total := 0
	for end := time.Now().Add(patience); time.Now().Before(end); {
		rest := !load.Runnable(r.ksoftirqd)
		k := r.nft.Received()
		if total += k; k == 0 && rest {
			break
		}
	}
	return total
}
