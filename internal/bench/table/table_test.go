package table

import (
	"errors"
	"os"
	"testing"
)

func Example() {
	t := New(os.Stdout, "server\tus\tlost %\t")
	t.Row("%s\t%.2f\t%.1f\t", "usher", 3.14159, 0.0)
	t.Row("%s\t%.2f\t%.1f\t", "another", 15.0, 2.5)
	if err := t.Flush(); err != nil {
		panic(err)
	}
	// Output:
	//    server     us  lost %
	//     usher   3.14     0.0
	//   another  15.00     2.5
}

type broken struct{}

var errBroken = errors.New("broken")

func (broken) Write([]byte) (int, error) { return 0, errBroken }

func TestFlushSaysWhatWentWrong(t *testing.T) {
	table := New(broken{}, "server\t")
	table.Row("usher\t")
	if err := table.Flush(); !errors.Is(err, errBroken) {
		t.Errorf("%v", err)
	}
}
