package ufrag

import (
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
	"testing"
)

// The package must stay free of Pion, Redis and Prometheus, so that importing it
// costs nobody a dependency.
func TestImportsOnlyStandardLibrary(t *testing.T) {
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), e.Name(), nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, imp := range f.Imports {
			path, err := strconv.Unquote(imp.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			seen++
			first, _, _ := strings.Cut(path, "/")
			if strings.Contains(first, ".") && path != "github.com/usher-rtc/usher/internal/config" {
				t.Errorf("%s imports %s", e.Name(), path)
			}
		}
	}
	if seen == 0 {
		t.Fatal("found no imports at all")
	}
}
