package cli

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/usher-rtc/usher/relay"
)

// NewFlags returns an empty set of flags whose usage begins with synopsis.
func NewFlags(name, synopsis string) *flag.FlagSet {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	flags.Usage = func() {
		fmt.Fprintf(os.Stderr, "usage: %s %s\n", name, synopsis)
		flags.SetOutput(os.Stderr)
		flags.PrintDefaults()
	}
	return flags
}

// Parse parses args. An error is one line, without the list of all flags, and says
// how to get that.
func Parse(flags *flag.FlagSet, args []string) error {
	usage := flags.Usage
	flags.SetOutput(io.Discard)
	flags.Usage = func() {}
	flags.VisitAll(explain)
	err := flags.Parse(args)
	flags.VisitAll(unexplain) // the usage tells types apart
	if errors.Is(err, flag.ErrHelp) {
		usage()
		return err
	}
	if err != nil {
		return fmt.Errorf("%w; %q lists the flags", err, flags.Name()+" -help")
	}
	return nil
}

// NameFlag makes an error about a field of a configuration one about the flag that
// the field comes from; flags has its name, for those fields that have one.
func NameFlag(err error, flags map[string]string) error {
	var bad *relay.ConfigError
	if !errors.As(err, &bad) {
		return err
	}
	field, _, _ := strings.Cut(bad.Field, "[") // Ingresses[0].Listen
	if name, ok := flags[field]; ok {
		return fmt.Errorf("-%s: %s", name, bad.Problem)
	}
	return err
}

// ParseDaemon is Parse for programs that take flags and nothing else.
func ParseDaemon(flags *flag.FlagSet, args []string) error {
	if err := Parse(flags, args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	return nil
}

// explained is a flag's value whose error says what is wanted. That of package flag
// is "parse error".
type explained struct {
	flag.Value
	want string
}

// Set implements flag.Value.
func (e explained) Set(text string) error {
	if e.Value.Set(text) != nil {
		return errors.New("want " + e.want)
	}
	return nil
}

func explain(f *flag.Flag) {
	value, ok := f.Value.(flag.Getter)
	if !ok {
		return // one of this package's, whose errors are clear
	}
	switch value.Get().(type) {
	case time.Duration:
		f.Value = explained{value, "a duration with a unit, such as 5s"}
	case int, int64:
		f.Value = explained{value, "a whole number"}
	case uint, uint64:
		f.Value = explained{value, "a whole number, not a negative one"}
	case float64:
		f.Value = explained{value, "a number"}
	}
}

func unexplain(f *flag.Flag) {
	if e, ok := f.Value.(explained); ok {
		f.Value = e.Value
	}
}
