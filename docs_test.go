package usher_test

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/usher-rtc/usher/internal/forward"
	"github.com/usher-rtc/usher/transceiver"
)

// pages returns the text of every Markdown file of this repository, without what
// tools have put there.
func pages(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "node_modules" || d.Name() == "testdata"):
			return fs.SkipDir
		case d.IsDir() || path.Ext(name) != ".md":
			return nil
		}
		text, err := os.ReadFile(name)
		found[filepath.ToSlash(name)] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

var (
	codeBlock = regexp.MustCompile("(?ms)^ *```.*?^ *```")
	link      = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading   = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	notInSlug = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	codeSpan  = regexp.MustCompile("`[^`\n]+`")
)

// anchors returns what can follow the # in a link to a page, as GitHub makes it.
func anchors(text string) map[string]bool {
	found := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(codeBlock.ReplaceAllString(text, ""), -1) {
		slug := notInSlug.ReplaceAllString(strings.ToLower(strings.TrimSpace(m[1])), "")
		found[strings.ReplaceAll(slug, " ", "-")] = true
	}
	return found
}

// TestLinksInDocsLeadSomewhere follows every relative link, anchors included.
func TestLinksInDocsLeadSomewhere(t *testing.T) {
	all := pages(t)
	if all["README.md"] == "" || all["docs/wire.md"] == "" {
		t.Fatalf("the pages are not here, only %d others", len(all))
	}
	for name, text := range all {
		for _, m := range link.FindAllStringSubmatch(codeBlock.ReplaceAllString(text, ""), -1) {
			target, anchor, hasAnchor := strings.Cut(m[1], "#")
			if strings.Contains(target, ":") {
				continue // an address on the web
			}
			file := name
			if target != "" {
				file = path.Join(path.Dir(name), target)
			}
			if _, err := os.Stat(filepath.FromSlash(file)); err != nil {
				t.Errorf("%s: the link %s leads nowhere", name, m[1])
			} else if hasAnchor && !anchors(all[file])[anchor] {
				t.Errorf("%s: the link %s leads to a page without that heading", name, m[1])
			}
		}
	}
}

// TestTroubleshootingKnowsEveryReason compares the page for calls that do not
// connect with the reasons that a relay and a Host count.
func TestTroubleshootingKnowsEveryReason(t *testing.T) {
	text := pages(t)["docs/troubleshooting.md"]
	spans := map[string]bool{}
	for _, s := range codeSpan.FindAllString(text, -1) {
		spans[strings.Trim(s, "`")] = true
	}
	for r := forward.None + 1; r < forward.NumReasons; r++ {
		if !spans[r.String()] {
			t.Errorf("it does not say what %q of a relay means", r)
		}
	}
	n := 0
	for d := transceiver.DropReason(0); d.String() != "unknown"; d++ {
		n++
		if !spans[d.String()] {
			t.Errorf("it does not say what %q of a Host means", d)
		}
	}
	if n == 0 {
		t.Error("a Host has no reasons")
	}
}
