package main

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/usher-rtc/usher/internal/meter"
)

// redial is the silence after which callers call again. The page waits twice as
// long, since it cannot see how busy its machine is.
const redial = time.Second

// reconnected is the most that a call may take from the end of its transceiver
// until audio flows from another one: the silence, the set-up of all such calls
// at once, and a machine that is busy with it.
const reconnected = 5 * time.Second

func isNot(gone ...*host) func(*host, int) bool {
	return func(h *host, _ int) bool {
		for _, g := range gone {
			if h == g {
				return false
			}
		}
		return true
	}
}

// hostDrained ends the second transceiver as an orchestrator does. Its calls go
// on; half of them hang up in time, the others are ended at the deadline.
func hostDrained(ctx context.Context, f *fleet) error {
	second := f.hosts[1]
	w := f.now(hostDrain - time.Second)
	at, err := terminate(second.process)
	if err != nil {
		return err
	}
	ready := eventually(ctx, time.Second, func() error {
		if err := f.get(ctx, second.url+"/readyz", nil); err == nil {
			return fmt.Errorf("%s is ready after SIGTERM", second.name)
		}
		return nil
	})
	v, err := f.measure(ctx, f.drill, w, nil)
	if err != nil {
		return err
	}
	own := f.of(second)
	hangUp(own[:len(own)/2])
	took, err := f.drained(second.process, at, hostDrain)
	second.gone = true
	v.within(jitter).lossless().note("ended after %.0f ms", millis(took))
	for _, problem := range []error{ready, err} {
		if problem != nil {
			v.fail("%v", problem)
		}
	}
	f.report(v)
	hangUp(own[len(own)/2:])
	return f.resume(ctx, 1)
}

// hangUp ends calls.
func hangUp(all []*caller) {
	for _, c := range all {
		c.stop()
	}
	closeAll(all)
}

// resume starts a transceiver again and makes the calls that it had before.
func (f *fleet) resume(ctx context.Context, i int) error {
	if err := f.startHost(ctx, i); err != nil {
		return err
	}
	if err := f.placeAll(ctx, f.of(f.hosts[i])); err != nil {
		return err
	}
	return pause(ctx, settled)
}

// placeAll makes calls side by side.
func (f *fleet) placeAll(ctx context.Context, all []*caller) error {
	var wg sync.WaitGroup
	errs := make([]error, len(all))
	limit := make(chan struct{}, atOnce)
	for i, c := range all {
		limit <- struct{}{}
		wg.Go(func() {
			errs[i] = f.place(ctx, c)
			<-limit
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// hostEndedOff is what there would be without a drain.
func hostEndedOff(ctx context.Context, f *fleet) error {
	// Asked for the record of the others first: nobody can ask the one that ends.
	second := f.hosts[1]
	w := f.now(aftermath)
	at, err := terminate(second.process)
	if err != nil {
		return err
	}
	if err := second.ended(startLimit); err != nil {
		return err
	}
	second.gone = true
	v, err := f.measure(ctx, f.drill, w, nil)
	if err != nil {
		return err
	}
	// What its callers sent after the end has no receiver that could be asked.
	for _, c := range f.of(second) {
		lost := &stream{sent: c.sent.Since(w.from)}
		v.calls = append(v.calls, call{up: lost})
		v.gaps = append(v.gaps, time.Duration(w.to-at))
		n, all := lost.losses(w)
		v.sent, v.lost = v.sent+n, v.lost+all
	}
	f.report(v.lossy())
	return nil
}

// hostKilled crashes the second transceiver and that of a browser. Their callers
// and the page call others; nobody else notices.
func hostKilled(ctx context.Context, f *fleet) error {
	second := f.hosts[1]
	gone := []*host{second}
	var page *talker
	if len(f.talkers) > 0 {
		page = f.talkers[0]
		gone = append(gone, page.home)
		page.aim(f.talkers[1].home)
	}
	w := f.now(0)
	for _, h := range gone {
		h.kill()
		h.gone = true
	}
	if err := after(ctx, w.from, redial); err != nil {
		return err
	}
	own := f.of(second)
	hangUp(own)
	for _, c := range own {
		c.host = f.hosts[0]
	}
	if err := f.placeAll(ctx, own); err != nil {
		return err
	}
	if page != nil {
		if err := page.arrived(ctx, f.talkers[1]); err != nil {
			return err
		}
	}
	w.to = max(meter.Now(), w.from+int64(aftermath)) + int64(time.Second)
	if err := after(ctx, w.to, 0); err != nil {
		return err
	}
	callers := judge(f.drill+"-callers", w, nil)
	callers.note("calls %d", len(own))
	for _, c := range own {
		s := &stream{received: c.received.Since(w.from - int64(settled))}
		callers.gaps = append(callers.gaps, s.gap(w))
	}
	if page != nil {
		_, heard := page.heard(w.from)
		s := &stream{received: heard}
		callers.gaps = append(callers.gaps, s.gap(w))
		callers.note("the page %.0f", millis(s.gap(w)))
	}
	f.report(callers.within(reconnected))

	moved := make(map[uint32]bool)
	for _, c := range own {
		moved[c.session] = true
	}
	if page != nil {
		moved[page.session] = true
	}
	v, err := f.measureOthers(ctx, f.drill+"-others", w, nil, moved)
	if err != nil {
		return err
	}
	f.report(v.within(jitter).lossless())

	// Back to where they were.
	hangUp(own)
	for _, c := range own {
		c.host = second
	}
	if page != nil {
		if err := f.startHost(ctx, slices.Index(f.hosts, page.home)); err != nil {
			return err
		}
		if err := page.goHome(ctx); err != nil {
			return err
		}
	}
	return f.resume(ctx, 1)
}

// addressReused crashes the second transceiver and starts another one at its
// address, while the callers of the first go on sending to it.
func addressReused(ctx context.Context, f *fleet) error {
	second := f.hosts[1]
	second.kill()
	second.gone = true
	if err := f.startHost(ctx, 1); err != nil {
		return err
	}
	own := f.of(second)
	w := f.now(aftermath)
	second.gone = true // the new one does not know the calls of the old one
	v, err := f.measure(ctx, f.drill, w, isNot(second))
	if err != nil {
		return err
	}
	second.gone = false
	v.within(jitter).lossless()
	f.heardNothing(v, own, w)
	// The new one works.
	first := own[0]
	hangUp(own[:1])
	if err := f.place(ctx, first); err != nil {
		v.fail("a call to the new transceiver: %v", err)
	}
	f.report(v)
	hangUp(own)
	return f.placeAllAndSettle(ctx, own)
}

func (f *fleet) placeAllAndSettle(ctx context.Context, all []*caller) error {
	if err := f.placeAll(ctx, all); err != nil {
		return err
	}
	return pause(ctx, settled)
}

// heardNothing requires that callers whose transceiver is gone received nothing.
func (f *fleet) heardNothing(v *verdict, all []*caller, w spell) {
	heard := 0
	for _, c := range all {
		heard += len(c.received.Since(w.from))
	}
	v.note("%d callers of the dead one", len(all))
	if heard > 0 {
		v.fail("callers of a dead transceiver received %d packets", heard)
	}
}

// echoed is the most datagrams a second that a stranger may get from a relay:
// what callers send, bundled, and control.
const echoedPerCaller = 60

// addressEchoing crashes the second transceiver and puts a program at its address
// that sends every datagram back.
func addressEchoing(ctx context.Context, f *fleet) error {
	second := f.hosts[1]
	second.kill()
	second.gone = true
	// A short time later there is no packet of the dead one's on its way.
	if err := pause(ctx, 100*time.Millisecond); err != nil {
		return err
	}
	conn, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(second.trunk))
	if err != nil {
		return err
	}
	echoed := 0
	done := make(chan struct{})
	go func() {
		defer close(done)
		for buf := make([]byte, 64<<10); ; echoed++ {
			n, from, err := conn.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			_, _ = conn.WriteToUDPAddrPort(buf[:n], from)
		}
	}()
	own := f.of(second)
	w := f.now(aftermath)
	v, err := f.measure(ctx, f.drill, w, isNot(second))
	_ = conn.Close()
	<-done
	if err != nil {
		return err
	}
	v.within(jitter).lossless().note("%d datagrams echoed", echoed)
	f.heardNothing(v, own, w)
	if limit := int(aftermath.Seconds()) * echoedPerCaller * (len(own) + 10); echoed > limit {
		v.fail("%d datagrams were echoed, want at most %d: something goes round", echoed, limit)
	}
	if err := f.get(ctx, f.relays[0].url+"/healthz", nil); err != nil {
		v.fail("%v", err)
	}
	f.report(v)
	hangUp(own)
	return f.resume(ctx, 1)
}
