package cli

import (
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/usher-rtc/usher/relay"
	"github.com/usher-rtc/usher/ufrag"
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

func TestWrongValueSaysWhatIsWanted(t *testing.T) {
	for _, tt := range []struct{ arg, want string }{
		{"-d=5", "want a duration with a unit, such as 5s"},
		{"-n=x", "want a whole number"},
		{"-u=-1", "want a whole number, not a negative one"},
		{"-f=x", "want a number"},
	} {
		flags := NewFlags("relayd", "[flags]")
		flags.Duration("d", 0, "")
		flags.Int("n", 0, "")
		flags.Uint("u", 0, "")
		flags.Float64("f", 0, "")
		if err := ParseDaemon(flags, []string{tt.arg}); err == nil || !strings.Contains(err.Error(), tt.want+";") {
			t.Errorf("of %s: %v, want %q", tt.arg, err, tt.want)
		}
	}
	flags := NewFlags("relayd", "[flags]")
	d := flags.Duration("d", 0, "")
	if err := ParseDaemon(flags, []string{"-d", "5s"}); err != nil || *d != 5*time.Second {
		t.Errorf("%v, %v", *d, err)
	}
	var usage strings.Builder
	flags.SetOutput(&usage)
	if flags.PrintDefaults(); !strings.Contains(usage.String(), "-d duration") {
		t.Errorf("the usage has lost the type: %s", usage.String())
	}
}

func TestKeysWarnAboutAFileForEverybody(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no permission bits: who may read a file is in its access list, which is not looked at")
	}
	key, err := ufrag.GenerateKey('A')
	if err != nil {
		t.Fatal(err)
	}
	text, err := ufrag.FormatKeyFile('A', key)
	if err != nil {
		t.Fatal(err)
	}
	for mode, warns := range map[os.FileMode]bool{0o600: false, 0o640: false, 0o644: true} {
		path := filepath.Join(t.TempDir(), "keys")
		if err := errors.Join(os.WriteFile(path, text, mode), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
		var log strings.Builder
		before := slog.Default()
		slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
		_, watcher, err := Keys(path)
		slog.SetDefault(before)
		if err != nil {
			t.Fatal(err)
		}
		_ = watcher.Close()
		if got := strings.Contains(log.String(), "chmod 600"); got != warns {
			t.Errorf("mode %o: %q", mode, log.String())
		}
	}
}
