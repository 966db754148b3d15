package flags

import (
	"flag"
	"testing"
)

func parsed(t *testing.T, args ...string) (fs *flag.FlagSet, n, m *int) {
	t.Helper()
	fs = flag.NewFlagSet("test", flag.ContinueOnError)
	n, m = fs.Int("n", 5, ""), fs.Int("m", 50, "")
	fs.String("parts", "cpu,idle", "")
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	return fs, n, m
}

// What the command line says is stronger than -quick.
func TestQuick(t *testing.T) {
	fs, n, m := parsed(t, "-n", "7")
	Quick(fs, map[string]string{"n": "1", "m": "10"})
	if *n != 7 || *m != 10 {
		t.Errorf("n %d, m %d; want 7 and 10", *n, *m)
	}
}

func TestInRange(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{nil, ""},
		{[]string{"-n", "1", "-m", "100"}, ""},
		{[]string{"-n", "0"}, "-n: want 1 to 10, got 0"},
		{[]string{"-m", "101"}, "-m: want 2 to 100, got 101"},
	} {
		fs, _, _ := parsed(t, tt.args...)
		err := InRange(fs, Range{"n", 1, 10}, Range{"m", 2, 100})
		if got := text(err); got != tt.want {
			t.Errorf("%v: %q, want %q", tt.args, got, tt.want)
		}
	}
}

func TestSomeOf(t *testing.T) {
	for parts, want := range map[string]string{
		"cpu":      "",
		"idle,cpu": "",
		"idle,up":  `-parts: unknown "up": want some of cpu,idle`,
		"":         `-parts: unknown "": want some of cpu,idle`,
	} {
		fs, _, _ := parsed(t, "-parts", parts)
		if got := text(SomeOf(fs, "parts", "cpu,idle")); got != want {
			t.Errorf("%q: %q, want %q", parts, got, want)
		}
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
