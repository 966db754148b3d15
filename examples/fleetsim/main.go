// Fleetsim plans a fleet on paper: from what users do and what a packet, a flow
// and a session cost, it prints how many relays and transceivers a fleet needs,
// what it loads Redis and the network with, what a loss costs, and how all of it
// grows. A simulation that shares no formula with the plan checks it.
//
//	fleetsim                                   # 900 million weekly users
//	fleetsim -weekly-users 2e6 -regions 2      # any input has a flag
//	fleetsim -report growth                    # from ten thousand users to a billion
//	fleetsim -report inputs                    # the inputs, and what measures them
//	fleetsim -report check -sessions 1000000   # the plan beside the simulation
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/usher-rtc/usher/examples/fleetsim/internal/inputs"
	"github.com/usher-rtc/usher/examples/fleetsim/internal/model"
	"github.com/usher-rtc/usher/examples/internal/cli"
)

func main() {
	cli.Main("fleetsim", func(_ context.Context, args []string) error { return run(os.Stdout, args) })
}

// reports are what -report may say.
var reports = map[string]func(io.Writer, *options) error{
	"plan":   func(w io.Writer, o *options) error { return printPlan(w, model.Plan(o.in)) },
	"loss":   func(w io.Writer, o *options) error { return printLoss(w, model.Plan(o.in)) },
	"growth": func(w io.Writer, o *options) error { return printGrowth(w, o.in) },
	"inputs": printInputs,
	"json":   printJSON,
	"check":  printCheck,
}

type options struct {
	in       inputs.Inputs
	list     []inputs.Input
	sessions int
	seed     uint64
}

func run(w io.Writer, args []string) error {
	var o options
	o.in, o.list = inputs.Default()
	flags := cli.NewFlags("fleetsim", "[flags]")
	var names []string
	report := flags.String("report", "plan,loss", "`parts`, separated by commas: plan, loss, growth, inputs, json, check")
	flags.IntVar(&o.sessions, "sessions", 1_000_000, "check: `calls` that are simulated")
	flags.Uint64Var(&o.seed, "seed", 1, "check: `number` that makes a run repeatable")
	flags.Func("inputs", "JSON `file` with inputs that are others than the defaults; -report json prints one", o.read)
	for i := range o.list {
		input := &o.list[i]
		usage := fmt.Sprintf("`value`, %s (default %s; %s)", input.Unit, number(input.Value), input.From)
		flags.Func(input.Name, usage, func(text string) error {
			v, err := strconv.ParseFloat(text, 64)
			if err != nil {
				return fmt.Errorf("%q is not a number", text)
			}
			return o.set(inputs.Input{Name: input.Name, Value: v, Unit: input.Unit, From: "-" + input.Name})
		})
	}
	if err := cli.ParseDaemon(flags, args); err != nil {
		return err
	}
	names = strings.Split(*report, ",")
	for _, name := range names {
		if reports[name] == nil {
			return fmt.Errorf("-report: there is no %q", name)
		}
	}
	for i, name := range names {
		if i > 0 {
			if _, err := fmt.Fprintln(w); err != nil {
				return err
			}
		}
		if err := reports[name](w, &o); err != nil {
			return err
		}
	}
	return nil
}

// set changes an input, and what -report inputs says about it.
func (o *options) set(input inputs.Input) error {
	if err := o.in.Set(input.Name, input.Value); err != nil {
		return err
	}
	for i := range o.list {
		if o.list[i].Name == input.Name {
			o.list[i] = input
		}
	}
	return nil
}

func (o *options) read(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	list, err := o.in.Read(f)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for _, input := range list {
		if err := o.set(input); err != nil {
			return err
		}
	}
	return nil
}

func printInputs(w io.Writer, o *options) error {
	var t table
	t.head("input", "value", "unit", "from")
	for _, i := range o.list {
		t.row(i.Name, number(i.Value), i.Unit, i.From)
	}
	return t.print(w, "Inputs", false)
}

func printJSON(w io.Writer, o *options) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(o.list)
}
