package main

import (
	"net"
	"strings"
	"testing"
)

// TestMistakesAreNamed: what is wrong with the arguments is said at the start.
func TestMistakesAreNamed(t *testing.T) {
	taken, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	busy := taken.Addr().String()
	for _, tt := range []struct {
		args string
		want string // in the error
	}{
		{"surplus", "surplus"},
		{"-nonsense", "-nonsense"},
		{"-service 127.0.0.1:9000", "-service"},
		{"-service ws://", "-service"},
		{"-relay nowhere", "nowhere"},
		{"-relay 127.0.0.1:0 -http " + busy, busy},
		{"service surplus", "surplus"},
		{"service -listen " + busy, busy},
	} {
		if err := run(t.Context(), strings.Fields(tt.args)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q in it", tt.args, err, tt.want)
		}
	}
}
