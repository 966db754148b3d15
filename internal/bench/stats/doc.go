// Package stats makes few numbers of many: quantiles, the least, median and
// greatest value, and ratios of rows that were measured in the same rounds.
//
// It owns no policy: which figure of which rows counts is decided by the commands
// that measure. The table package prints what it makes.
package stats
