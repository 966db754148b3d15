package table

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// Table is text in columns. Make it with New. Not for several goroutines at once.
type Table struct{ tw *tabwriter.Writer }

// New begins a table that goes to w when it is flushed; head has a tab after each
// column.
func New(w io.Writer, head string) Table {
	t := Table{tabwriter.NewWriter(w, 0, 4, 2, ' ', tabwriter.AlignRight)}
	t.Row("%s", head)
	return t
}

// Row adds a row, formatted as by fmt.Printf, with a tab after each column. What
// goes wrong Flush says.
func (t Table) Row(format string, args ...any) {
	_, _ = fmt.Fprintf(t.tw, format+"\n", args...)
}

// Flush writes the table, and returns the first error of the writer's.
func (t Table) Flush() error { return t.tw.Flush() }
