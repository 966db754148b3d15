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

// TestReadmeShowsTheCompiledAgent does the same for the voice agent, and keeps
// it short.
func TestReadmeShowsTheCompiledAgent(t *testing.T) {
	source, err := os.ReadFile("transceiver/bridge/example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, body, ok := strings.Cut(string(source), "func Example_agent() {\n")
	body, _, ends := strings.Cut(body, "\n}\n\n// exampleHost")
	if !ok || !ends {
		t.Fatal("example_test.go has no Example_agent, or not where it was")
	}
	want := "func main() {\n" + body + "\n}\n"
	if !strings.Contains(string(readme), want) {
		t.Errorf("README.md does not show the agent of example_test.go:\n%s", want)
	}
	if lines := strings.Count(want, "\n"); lines > 40 {
		t.Errorf("the agent has %d lines, more than 40", lines)
	}
}
