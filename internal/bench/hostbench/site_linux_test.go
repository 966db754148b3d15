package main

import (
	"net/netip"
	"strings"
	"testing"
)

const answer = "v=0\r\nm=audio 9 UDP/TLS/RTP/SAVPF 111\r\n" +
	"a=candidate:1 1 udp 2130706431 127.0.0.1 3478 typ host\r\n" +
	"a=candidate:1 2 udp 2130706431 127.0.0.1 3478 typ host\r\na=end-of-candidates\r\na=mid:0\r\n"

// Every way around the delay link would make a server look faster than it is.
func TestCandidates(t *testing.T) {
	at, err := candidateOf(answer)
	if err != nil || at != netip.MustParseAddrPort("127.0.0.1:3478") {
		t.Fatalf("%v, %v", at, err)
	}
	got := withCandidate(answer, netip.MustParseAddrPort("127.0.0.1:9"))
	if want := strings.ReplaceAll(answer, "3478", "9"); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := withoutCandidates(answer); strings.Contains(got, "candidate") || !strings.HasSuffix(got, "a=mid:0\r\n") {
		t.Errorf("got %q", got)
	}
	if _, err := candidateOf(withoutCandidates(answer)); err == nil {
		t.Error("an address without a candidate")
	}
}
