package flags

import (
	"flag"
	"fmt"
	"slices"
	"strings"
)

// Quick gives flags other values, by name, but for those that the command line
// has.
func Quick(fs *flag.FlagSet, values map[string]string) {
	set := make(map[string]bool)
	fs.Visit(func(f *flag.Flag) { set[f.Name] = true })
	for name, value := range values {
		if set[name] {
			continue
		}
		if err := fs.Set(name, value); err != nil {
			panic("flags: " + err.Error())
		}
	}
}

// Range are the bounds of a flag that is a whole number.
type Range struct {
	Name     string
	Min, Max int
}

// InRange returns an error about the first flag that is out of bounds.
func InRange(fs *flag.FlagSet, all ...Range) error {
	for _, r := range all {
		n := fs.Lookup(r.Name).Value.(flag.Getter).Get().(int)
		if n < r.Min || n > r.Max {
			return fmt.Errorf("-%s: want %d to %d, got %d", r.Name, r.Min, r.Max, n)
		}
	}
	return nil
}

// SomeOf returns an error if a flag, a list with commas, has something that is not
// in another such list.
func SomeOf(fs *flag.FlagSet, name, all string) error {
	for v := range strings.SplitSeq(fs.Lookup(name).Value.String(), ",") {
		if !slices.Contains(strings.Split(all, ","), v) {
			return fmt.Errorf("-%s: unknown %q: want some of %s", name, v, all)
		}
	}
	return nil
}
