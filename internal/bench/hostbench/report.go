package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// spread is the least, the median and the greatest of some values.
type spread struct{ min, median, max float64 }

func spreadOf(v []float64) spread {
	if len(v) == 0 {
		return spread{}
	}
	s := slices.Clone(v)
	slices.Sort(s)
	m := s[len(s)/2]
	if len(s)%2 == 0 {
		m = (s[len(s)/2-1] + m) / 2
	}
	return spread{min: s[0], median: m, max: s[len(s)-1]}
}

// ratios divides two rows round by round and returns the median.
func ratios(of, by []float64) float64 {
	var v []float64
	for i := range min(len(of), len(by)) {
		if by[i] > 0 {
			v = append(v, of[i]/by[i])
		}
	}
	return spreadOf(v).median
}

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
	w := tabwriter.NewWriter(&r.tables, 0, 4, 2, ' ', tabwriter.AlignRight)
	for _, row := range append([]string{head}, rows...) {
		if _, err := fmt.Fprintln(w, row); err != nil {
			return err
		}
	}
	return w.Flush()
}

func (r *report) print(w io.Writer) error {
	_, err := fmt.Fprintf(w, "%s\n%s\n", r.tables.String(), strings.Join(r.lines, "\n"))
	return err
}
