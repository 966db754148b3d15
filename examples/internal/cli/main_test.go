package cli

import (
	"errors"
	"flag"
	"fmt"
	"strings"
	"testing"

	"github.com/usher-rtc/usher/relay"
)

func TestWrongFlagSaysWhereTheFlagsAre(t *testing.T) {
	for _, args := range [][]string{{"-listn", "x"}, {"-n", "x"}} {
		flags := NewFlags("relayd", "[flags]")
		flags.Int("n", 0, "`number`")
		if err := ParseDaemon(flags, args); err == nil || !strings.HasSuffix(err.Error(), `; "relayd -help" lists the flags`) {
			t.Errorf("of %v: %v", args, err)
		}
	}
	if err := Parse(NewFlags("relayd", "[flags]"), []string{"-help"}); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("of -help: %v", err)
	}
}

func TestErrorNamesTheFlagNotTheField(t *testing.T) {
	flags := map[string]string{"Ingresses": "listen", "AllowUpstream": "allow-upstream"}
	taken := errors.New("address already in use")
	for _, tt := range []struct {
		err  error
		want string
	}{
		{&relay.ConfigError{Config: "relay.Config", Field: "AllowUpstream", Problem: "required"}, "-allow-upstream: required"},
		{fmt.Errorf("start: %w", &relay.ConfigError{Field: "Ingresses[1].Listen", Problem: "given twice"}), "-listen: given twice"},
		{&relay.ConfigError{Field: "MaxFlows", Problem: "negative"}, "MaxFlows: negative"}, // no flag for it
		{taken, "address already in use"},
	} {
		if got := NameFlag(tt.err, flags); got.Error() != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
}
