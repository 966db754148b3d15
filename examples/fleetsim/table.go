package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// table is text in columns, with a line under the head.
type table struct{ rows [][]string }

func (t *table) head(cells ...string) { t.rows = append(t.rows, cells) }
func (t *table) row(cells ...string)  { t.rows = append(t.rows, cells) }

// print writes the table. The first column is at the left, the others too, or at
// the right if they are numbers.
func (t *table) print(w io.Writer, title string, numbers bool) error {
	var widths []int
	for _, row := range t.rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	lines := []string{title}
	for r, row := range t.rows {
		var line strings.Builder
		for i, cell := range row {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i > 0 {
				line.WriteString("  ")
			}
			if i > 0 && numbers {
				line.WriteString(pad + cell)
			} else {
				line.WriteString(cell + pad)
			}
		}
		text := strings.TrimRight(line.String(), " ")
		lines = append(lines, text)
		if r == 0 {
			lines = append(lines, strings.Repeat("-", utf8.RuneCountInString(text)))
		}
	}
	_, err := fmt.Fprintln(w, strings.Join(lines, "\n"))
	return err
}

// number prints a value as it is, with commas from ten thousand on.
func number(v float64) string {
	text := strconv.FormatFloat(v, 'f', -1, 64)
	whole, rest, _ := strings.Cut(text, ".")
	if rest != "" {
		rest = "." + rest
	}
	if len(whole) > 4 {
		whole = commas(whole)
	}
	return whole + rest
}

func commas(digits string) string {
	var out strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			out.WriteByte(',')
		}
		out.WriteRune(d)
	}
	return out.String()
}

// amount prints a computed value with three significant digits: the inputs know
// no more.
func amount(v float64) string {
	rounded, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 3, 64), 64)
	if err != nil {
		return err.Error() // cannot happen: it was a float a moment ago
	}
	return number(rounded)
}

// percent is amount of a share. Less than a thousandth is none.
func percent(v float64) string {
	if v < 0.001 {
		return "0 %"
	}
	return amount(v*100) + " %"
}

// seconds is amount in the unit that suits.
func seconds(v float64) string {
	if v < 1 {
		return amount(v*1000) + " ms"
	}
	return amount(v) + " s"
}
