package procs

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/usher-rtc/usher/ufrag"
)

// Programs are the paths of the example programs that a fleet is made of.
type Programs struct{ Relayd, Transceiverd string }

// Build compiles them into a directory, which it makes if there is none, with
// further flags of go build.
func Build(ctx context.Context, dir string, flags ...string) (*Programs, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	args := slices.Concat([]string{"build", "-o", dir + "/"}, flags,
		[]string{"github.com/usher-rtc/usher/examples/relayd", "github.com/usher-rtc/usher/examples/transceiverd"})
	if out, err := exec.CommandContext(ctx, "go", args...).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return &Programs{filepath.Join(dir, "relayd"), filepath.Join(dir, "transceiverd")}, nil
}

// WriteKeys makes a key and writes it to a key file. The codec has the same key.
func WriteKeys(path string, id byte) (ufrag.Codec, error) {
	key, err := ufrag.GenerateKey(id)
	if err != nil {
		return nil, err
	}
	keys, err := ufrag.NewKeyring(id, key)
	if err != nil {
		return nil, err
	}
	text, err := ufrag.FormatKeyFile(id, key)
	if err != nil {
		return nil, err
	}
	return ufrag.NewCodec(keys), os.WriteFile(path, text, 0o600)
}
