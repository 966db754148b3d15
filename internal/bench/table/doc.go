// Package table prints text in columns, right-aligned, as the commands that
// measure do.
//
// It owns the layout, not the figures: the stats package makes those.
package table
