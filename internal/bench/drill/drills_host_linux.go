package main

import (
	"context"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/usher-rtc/usher/internal/bench/callers"
	"github.com/usher-rtc/usher/internal/bench/gaps"
	"github.com/usher-rtc/usher/internal/bench/stats"
	"github.com/usher-rtc/usher/internal/bench/wait"
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
	at, err := terminate(second.Process)
	if err != nil {
		return err
	}
	ready := wait.Until(ctx, time.Second, func() error {
		if err := f.get(ctx, second.url+"/readyz", nil); err == nil {
			return fmt.Errorf("%s is ready after SIGTERM", second.Name)
		}
		return nil
	})
	v, err := f.measure(ctx, f.drill, w, nil)
	if err != nil {
		return err
	}
	own := f.of(second)
	callers.HangUpAll(own[:len(own)/2])
	took, err := f.drained(second.Process, at, hostDrain)
	second.gone = true
	v.within(jitter).lossless().Note("ended after %.0f ms", stats.Millis(took))
	for _, problem := range []error{ready, err} {
		if problem != nil {
			v.Fail("%v", problem)
		}
	}
	f.report(v)
	callers.HangUpAll(own[len(own)/2:])
	return f.resume(ctx, 1)
}

// resume starts a transceiver again and makes the calls that it had before.
func (f *fleet) resume(ctx context.Context, i int) error {
	if err := f.startHost(ctx, i); err != nil {
		return err
	}
	if err := f.placeAll(ctx, f.of(f.hosts[i])); err != nil {
		return err
	}
	return wait.For(ctx, settled)
}

// hostEndedOff is what there would be without a drain.
func hostEndedOff(ctx context.Context, f *fleet) error {
	// Asked for the record of the others first: nobody can ask the one that ends.
	second := f.hosts[1]
	w := f.now(aftermath)
	at, err := terminate(second.Process)
	if err != nil {
		return err
	}
	if err := second.Ended(startLimit); err != nil {
		return err
	}
	second.gone = true
	v, err := f.measure(ctx, f.drill, w, nil)
	if err != nil {
		return err
	}
	// What its callers sent after the end has no receiver that could be asked.
	for _, c := range f.of(second) {
		lost := &gaps.Stream{Sent: c.Spoken.Since(w.From)}
		v.calls = append(v.calls, call{up: lost})
		v.Gaps = append(v.Gaps, time.Duration(w.To-at))
		n, all := lost.Losses(w, border)
		v.sent, v.Lost = v.sent+n, v.Lost+all
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
		h.Kill()
		h.gone = true
	}
	if err := after(ctx, w.From, redial); err != nil {
		return err
	}
	own := f.of(second)
	callers.HangUpAll(own)
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
	w.To = max(meter.Now(), w.From+int64(aftermath)) + int64(time.Second)
	if err := after(ctx, w.To, 0); err != nil {
		return err
	}
	again := judge(f.drill+"-callers", w, nil)
	again.Note("calls %d", len(own))
	for _, c := range own {
		s := &gaps.Stream{Received: c.Heard.Since(w.From - int64(settled))}
		again.Gaps = append(again.Gaps, s.Gap(w))
	}
	if page != nil {
		_, heard := page.heard(w.From)
		s := &gaps.Stream{Received: heard}
		again.Gaps = append(again.Gaps, s.Gap(w))
		again.Note("the page %.0f", stats.Millis(s.Gap(w)))
	}
	f.report(again.within(reconnected))

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
	callers.HangUpAll(own)
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
	second.Kill()
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
	callers.HangUpAll(own[:1])
	if err := f.place(ctx, first); err != nil {
		v.Fail("a call to the new transceiver: %v", err)
	}
	f.report(v)
	callers.HangUpAll(own)
	return f.placeAllAndSettle(ctx, own)
}

func (f *fleet) placeAllAndSettle(ctx context.Context, all []*caller) error {
	if err := f.placeAll(ctx, all); err != nil {
		return err
	}
	return wait.For(ctx, settled)
}

// heardNothing requires that callers whose transceiver is gone received nothing.
func (f *fleet) heardNothing(v *verdict, all []*caller, w gaps.Spell) {
	heard := 0
	for _, c := range all {
		heard += len(c.Heard.Since(w.From))
	}
	v.Note("%d callers of the dead one", len(all))
	if heard > 0 {
		v.Fail("callers of a dead transceiver received %d packets", heard)
	}
}

// echoed is the most datagrams a second that a stranger may get from a relay:
// what callers send, bundled, and control.
const echoedPerCaller = 60

// addressEchoing crashes the second transceiver and puts a program at its address
// that sends every datagram back.
func addressEchoing(ctx context.Context, f *fleet) error {
	second := f.hosts[1]
	second.Kill()
	second.gone = true
	// A short time later there is no packet of the dead one's on its way.
	if err := wait.For(ctx, 100*time.Millisecond); err != nil {
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
	v.within(jitter).lossless().Note("%d datagrams echoed", echoed)
	f.heardNothing(v, own, w)
	if limit := int(aftermath.Seconds()) * echoedPerCaller * (len(own) + 10); echoed > limit {
		v.Fail("%d datagrams were echoed, want at most %d: something goes round", echoed, limit)
	}
	if err := f.get(ctx, f.relays[0].url+"/healthz", nil); err != nil {
		v.Fail("%v", err)
	}
	f.report(v)
	callers.HangUpAll(own)
	return f.resume(ctx, 1)
}
