package main

import (
	"bytes"
	"flag"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/usher-rtc/usher/examples/fleetsim/internal/inputs"
	"github.com/usher-rtc/usher/flowtable"
)

var sessions = flag.Int("sessions", 200_000, "calls that TestFormulaAndSimulation plays, each time")

// TestFormulaAndSimulation holds the formulas against a day that is played call by
// call. -sessions 1000000 plays the whole million.
func TestFormulaAndSimulation(t *testing.T) {
	for _, tt := range []struct {
		name string
		args map[string]float64
	}{
		{"defaults", nil},
		{"look-ups are short", map[string]float64{"store-lookups": float64(*sessions) / 20_000, "relay-packets-full": 20_000}},
		{"long calls of few packets, slow checks", map[string]float64{
			"call-seconds": 900, "packets-per-second": 10, "check-seconds": 6, "peak-factor": 1.5, "far-share": 0.5, "zones": 4,
		}},
		{"short calls", map[string]float64{"call-seconds": 20, "flow-idle-seconds": 200, "redial-seconds": 2}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in, _ := inputs.Default()
			for name, v := range tt.args {
				if err := in.Set(name, v); err != nil {
					t.Fatal(err)
				}
			}
			pairs, _, err := compare(in, *sessions, 1)
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range pairs {
				if p.off() > 0.05 {
					t.Errorf("%s: the formula says %g, the simulation %g", p.name, p.formula, p.played)
				}
			}
		})
	}
}

// TestSimulationSharesNoFormula checks the imports: neither side may use the other
// or anything of this module besides the inputs.
func TestSimulationSharesNoFormula(t *testing.T) {
	for _, dir := range []string{"internal/model", "internal/sim"} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") {
				return err
			}
			f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
			if err != nil {
				return err
			}
			for _, i := range f.Imports {
				name := strings.Trim(i.Path.Value, `"`)
				if strings.Contains(name, "/examples/") && !strings.HasSuffix(name, "/fleetsim/internal/inputs") {
					t.Errorf("%s imports %s", path, name)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestDocIsTheProgramsOutput runs every command of docs/scale.md and compares.
func TestDocIsTheProgramsOutput(t *testing.T) {
	doc, err := os.ReadFile("../../docs/scale.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```console\n\\$ go run ./examples/fleetsim([^\n]*)\n(.*?)```").FindAllSubmatch(doc, -1)
	if len(blocks) < 4 {
		t.Fatalf("%d commands with output in docs/scale.md", len(blocks))
	}
	for _, b := range blocks {
		args := strings.Fields(string(b[1]))
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			var out bytes.Buffer
			if err := run(&out, args); err != nil {
				t.Fatal(err)
			}
			if got := out.String(); got != string(b[2]) {
				t.Errorf("docs/scale.md has\n%s\nthe program prints\n%s", b[2], got)
			}
		})
	}
}

func TestFlags(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string // in the error; empty: none
	}{
		{[]string{"-weekly-users", "1e4", "-regions", "1"}, ""},
		{[]string{"-report", "growth,inputs"}, ""},
		{[]string{"-report", "everything"}, `there is no "everything"`},
		{[]string{"-report", "check", "-sessions", "0"}, "Sessions"},
		{[]string{"-weekly-users", "many"}, "not a number"},
		{[]string{"-weekly-users", "NaN"}, "outside"},
		{[]string{"-zones", "1"}, "outside"},
		{[]string{"-zones", "2.5"}, "not a whole number"},
		{[]string{"-users", "1"}, "not defined"},
		{[]string{"-inputs", "no-such-file"}, "no-such-file"},
		{[]string{"plan"}, "unexpected argument"},
	} {
		err := run(new(bytes.Buffer), tt.args)
		switch {
		case tt.want == "" && err != nil:
			t.Errorf("%q: %v", tt.args, err)
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%q: %v, want %q in it", tt.args, err, tt.want)
		}
	}
}

// TestInputsRoundTrip writes the inputs to a file and reads them back: -inputs
// must give the plan that a flag gives.
func TestInputsRoundTrip(t *testing.T) {
	var list, byFlag, byFile bytes.Buffer
	if err := run(&list, []string{"-report", "json", "-weekly-users", "12345678"}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "inputs.json")
	if err := os.WriteFile(path, list.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run(&byFlag, []string{"-weekly-users", "12345678"}); err != nil {
		t.Fatal(err)
	}
	if err := run(&byFile, []string{"-inputs", path}); err != nil {
		t.Fatal(err)
	}
	if byFlag.String() != byFile.String() || !strings.Contains(byFile.String(), "12,300,000 weekly users") {
		t.Errorf("by flag:\n%s\nby file:\n%s", &byFlag, &byFile)
	}
}

// TestLibraryDefaults holds the inputs that are the library's defaults against it.
func TestLibraryDefaults(t *testing.T) {
	in, _ := inputs.Default()
	if in.FlowIdleSeconds != flowtable.DefaultIdleTimeout.Seconds() {
		t.Error("flow-idle-seconds is not the table's default")
	}
	if in.RelayFlows != flowtable.DefaultMaxFlows {
		t.Error("relay-flows is not the table's default")
	}
	for file, lines := range map[string][]string{
		"../../relay/config.go":       {`defaultStoreTTL += 10 \* time.Minute`, `defaultStoreLookups += 1_?000\b`},
		"../../relay/lookup.go":       {`refreshes = 4\b`, `hurriedRound = 10 \* time.Second`},
		"../../transceiver/config.go": {`MaxSessions is how many sessions may be alive at once. 0 means 4,096`},
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range lines {
			if !regexp.MustCompile(line).Match(text) {
				t.Errorf("%s no longer says %q", file, line)
			}
		}
	}
}

// TestCommandsExist checks that what the inputs name as their source is there.
func TestCommandsExist(t *testing.T) {
	_, list := inputs.Default()
	commands := 0
	for _, i := range list {
		for _, word := range strings.Fields(i.From) {
			if dir, ok := strings.CutPrefix(word, "./"); ok {
				commands++
				if _, err := os.Stat(filepath.Join("../..", dir)); err != nil {
					t.Errorf("%s: %v", i.Name, err)
				}
			}
		}
	}
	if commands == 0 {
		t.Error("no input names a command")
	}
}

func TestNumber(t *testing.T) {
	for _, tt := range []struct {
		in   float64
		want string
	}{
		{0, "0"}, {57, "57"}, {8930, "8930"}, {12345, "12,300"}, {2678571, "2,680,000"},
		{0.0268, "0.0268"}, {0.5, "0.5"}, {33.61, "33.6"}, {117.43, "117"}, {999.6, "1000"},
	} {
		if got := amount(tt.in); got != tt.want {
			t.Errorf("%g: %s, want %s", tt.in, got, tt.want)
		}
	}
	for _, tt := range []struct {
		in   float64
		want string
	}{{262144, "262,144"}, {117.4, "117.4"}, {900e6, "900,000,000"}, {2.7, "2.7"}, {19.5, "19.5"}} {
		if got := number(tt.in); got != tt.want {
			t.Errorf("%g: %s, want %s", tt.in, got, tt.want)
		}
	}
}
