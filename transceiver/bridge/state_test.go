package bridge

import (
	"errors"
	"testing"
	"time"
)

// TestOnStateMayBlock: the bridge goes on while a callback waits, and the newest
// changes come in order after it.
func TestOnStateMayBlock(t *testing.T) {
	url, next := calls(t, HandlerConfig{})
	free := make(chan struct{})
	r := newRig(t, Config{OnState: func(*Bridge, Change) { <-free }}, url).begin()
	c, _ := next() // it has connected though the callback waits
	r.audio.hear(1)
	if _, err := c.Next(within(t)); err != nil {
		t.Error(err)
	}
	r.state(StateConnecting)
	eventually(t, "the bridge to be ready", func() bool { return r.b.State() == StateReady })
	const many = 3 * maxChanges
	for n := range many {
		r.b.change(Change{State: StateReconnecting, Attempt: n})
	}
	close(free)
	for n := many - maxChanges; n < many; n++ {
		if c := <-r.changes; c.State != StateReconnecting || c.Attempt != n {
			t.Fatalf("%+v, want attempt %d", c, n)
		}
	}
}

// TestOnStateHasTheLastWord: the session is there for a last event, but not for
// a callback that never returns.
func TestOnStateHasTheLastWord(t *testing.T) {
	url, next := calls(t, HandlerConfig{})
	blocked, early := make(chan struct{}), make(chan bool, 1)
	var r *rig
	r = newRig(t, Config{OnState: func(_ *Bridge, c Change) {
		if c.State != StateEnded {
			return
		}
		select {
		case <-r.closed:
			early <- true
		default:
			early <- false
		}
		<-blocked
	}}, url)
	r.begin()
	_, end := next()
	end <- nil
	if <-early {
		t.Error("the session was closed before the last word")
	}
	select {
	case <-r.closed:
	case <-time.After(patience):
		t.Error("a callback keeps the session open")
	}
	close(blocked)
}

func TestValidate(t *testing.T) {
	for field, cfg := range map[string]Config{
		"":                   {Target: Target{URL: "ws://service"}},
		"Target.URL":         {},
		"Audio.JitterBuffer": {Target: Target{URL: "ws://service"}},
		"Events.SendBuffer":  {Target: Target{URL: "ws://service"}},
	} {
		switch field {
		case "Audio.JitterBuffer":
			cfg.Audio.JitterBuffer = -1
		case "Events.SendBuffer":
			cfg.Events.SendBuffer = -1
		}
		was := cfg.Window
		err := cfg.Validate()
		var bad *ConfigError
		if field == "" && err != nil || field != "" && (!errors.As(err, &bad) || bad.Field != field || bad.Config != "bridge.Config") {
			t.Errorf("%q: %v", field, err)
		}
		if cfg.Window != was {
			t.Error("Validate changes what it validates")
		}
	}
}
