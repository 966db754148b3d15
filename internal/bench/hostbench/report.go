package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/usher-rtc/usher/internal/bench/table"
)

// report is what a run prints in the end: tables as they were made, and the
// lines that a program can read after them.
type report struct {
	tables strings.Builder
	lines  []string
}

func (r *report) line(format string, args ...any) {
	r.lines = append(r.lines, fmt.Sprintf(format, args...))
}

// table adds a table; each row's columns end with a tab.
func (r *report) table(title, head string, rows []string) error {
	r.tables.WriteString("\n" + title + "\n")
	t := table.New(&r.tables, head)
	for _, row := range rows {
		t.Row("%s", row)
	}
	return t.Flush()
}

func (r *report) print(w io.Writer) error {
	_, err := fmt.Fprintf(w, "%s\n%s\n", r.tables.String(), strings.Join(r.lines, "\n"))
	return err
}
