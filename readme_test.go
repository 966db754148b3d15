package usher_test

import (
	"os"
	"strings"
	"testing"
)

// TestReadmeShowsTheCompiledExample keeps the program in the README the one
// that the compiler has seen.
func TestReadmeShowsTheCompiledExample(t *testing.T) {
	source, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, body, ok := strings.Cut(string(source), "func Example_embed() {\n")
	if !ok {
		t.Fatal("example_test.go has no Example_embed")
	}
	if want := "func main() {\n" + body; !strings.Contains(string(readme), strings.TrimSpace(want)) {
		t.Errorf("README.md does not show the program of example_test.go:\n%s", want)
	}
}
