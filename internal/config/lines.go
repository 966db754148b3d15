package config

import (
	"iter"
	"strings"
)

// Lines yields the number, from 1, and the fields of each line of a text file that
// has any: everything from a # is a comment.
func Lines(text []byte) iter.Seq2[int, []string] {
	return func(yield func(int, []string) bool) {
		n := 0
		for line := range strings.Lines(string(text)) {
			n++
			line, _, _ = strings.Cut(line, "#")
			if fields := strings.Fields(line); len(fields) != 0 && !yield(n, fields) {
				return
			}
		}
	}
}
