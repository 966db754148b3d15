package config

import (
	"errors"
	"testing"
	"time"
)

// problem returns the field that an error is about; "" for none.
func problem(t *testing.T, err error) string {
	t.Helper()
	var e *Error
	if err != nil && !errors.As(err, &e) {
		t.Fatalf("%v is no *Error", err)
	}
	if e == nil {
		return ""
	}
	return e.Field
}

func TestDefault(t *testing.T) {
	for _, tt := range []struct {
		value, want time.Duration
		field       string
	}{
		{0, time.Second, ""},
		{5, 5, ""},
		{-1, -1, "Timeout"},
	} {
		got := tt.value
		err := Default("Timeout", &got, time.Second)
		if field := problem(t, err); field != tt.field || got != tt.want {
			t.Errorf("of %v: %v, %v; want %v and a problem with %q", tt.value, got, err, tt.want, tt.field)
		}
	}
}

func TestDNS(t *testing.T) {
	for in, want := range map[string]string{
		"relays-%d.media.example": "relays-%d.media.example.", "%d.": "%d.",
		"": "", "relays": "", "%d.%d": "", "%d.%s": "", "100%.%d": "",
	} {
		got := in
		err := DNSPattern("Pattern", &got)
		if want == "" && problem(t, err) != "Pattern" || want != "" && (err != nil || got != want) {
			t.Errorf("pattern %q: %q, %v; want %q", in, got, err, want)
		}
	}
	for in, want := range map[string]string{"": "ip", "ip": "ip", "ip4": "ip4", "ip6": "ip6", "udp": "", "IP4": ""} {
		got := in
		err := DNSNetwork("Network", &got)
		if want == "" && problem(t, err) != "Network" || want != "" && (err != nil || got != want) {
			t.Errorf("network %q: %q, %v; want %q", in, got, err, want)
		}
	}
}
