package main

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/usher-rtc/usher/internal/bench/peers"
)

// startPeers starts some peers and stops them by signal until they are used.
// A peer that does not start is left out, with a message: a machine may lack
// a program. usher must start.
func (b *bench) startPeers(names []string) ([]peers.Peer, error) {
	var out []peers.Peer
	for _, name := range names {
		p, err := newPeer(name)
		if err != nil {
			return out, err
		}
		err = p.Start(b.env)
		if err == nil {
			err = p.Process().Freeze()
		}
		if err == nil {
			out = append(out, p)
			continue
		}
		if p.Process() != nil {
			_ = p.Stop()
			err = fmt.Errorf("%w %s", err, p.Process().Errors())
		}
		if name == "usher" {
			return out, err
		}
		progress("%s: left out: %v", name, err)
	}
	return out, nil
}

func stopPeers(ps []peers.Peer) {
	for _, p := range ps {
		_ = p.Stop() // ended by a signal, which is what Wait reports
	}
}

// awake runs f while the peer runs; before and after it is stopped by signal.
func awake(p peers.Peer, f func() error) error {
	if err := p.Process().Thaw(); err != nil {
		return err
	}
	return errors.Join(f(), p.Process().Freeze())
}

// processPeers returns the chosen peers that have a process.
func (b *bench) processPeers() []string {
	return slices.DeleteFunc(slices.Clone(everyPeer), func(n string) bool { return n == "nft" || !b.peer(n) })
}

// cells measures the cost per packet of every cell, peer and round.
func (b *bench) cells() error {
	list := b.axes.cells(b.all)
	var err error
	for round := 0; round < b.rounds && err == nil; round++ {
		err = b.round(round, list)
	}
	fmt.Println("\nthousand packets per processor-second (min, median, max over rounds), microseconds per packet")
	return errors.Join(err, b.results.table(os.Stdout))
}

func (b *bench) round(round int, list []cell) error {
	ps, err := b.startPeers(b.processPeers())
	defer func() { stopPeers(ps) }()
	if err != nil {
		return err
	}
	nft := b.startNft(round)
	defer nft.stop()
	established := 0
	for i, c := range list {
		if c.clients > established {
			ps = b.establish(ps, c.clients)
			established = c.clients
		}
		progress("round %d of %d, cell %d of %d: %v", round+1, b.rounds, i+1, len(list), c)
		for k := range ps {
			if b.stopped.Load() {
				return errStopped
			}
			// Another peer goes first in each round.
			p := ps[(k+round)%len(ps)]
			var s sample
			t := newTraffic(b.env, p, c)
			err := awake(p, func() (err error) {
				if c.rate == 0 {
					s, err = t.drain(b.fill, b.fills)
				} else {
					s, err = t.paced(c.rate, b.warm, b.dur)
				}
				return err
			})
			if err != nil {
				progress("%s: %v: %v", p.Name(), c, err)
				continue
			}
			b.results.add(c, p.Name(), round, figure{
				perSecond: s.perSecond(), loss: s.loss(), offered: s.offered, up: s.bundleUp, down: s.bundleDown,
			})
		}
		if c.rate == 0 {
			b.measureNft(nft, c, round)
		}
	}
	return nil
}

// establish makes the flows of n clients known to the peers and returns those
// that know them all. Without that there is nothing to measure.
func (b *bench) establish(ps []peers.Peer, n int) []peers.Peer {
	var ok []peers.Peer
	for _, p := range ps {
		if err := awake(p, func() error { return p.Establish(n) }); err != nil {
			progress("%s: left out of this round: %v", p.Name(), err)
			stopPeers([]peers.Peer{p})
			continue
		}
		ok = append(ok, p)
	}
	return ok
}
