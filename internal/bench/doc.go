// Package bench is the module of the programs that measure and break usher; it has
// no code of its own.
//
// The commands: relaybench (the relay beside others), hostbench (the Host beside
// stock Pion), voice (from mouth to ear through a service), drill (one fleet that
// is broken in all the ways it must survive), fleet (two regions, and their
// roll-outs).
//
// What they measure: peers (relays), hosts (Hosts and their application).
// What they measure with: load (packets, and the processor time of pinned
// processes), callers (Pion clients), procs (relayd, transceiverd and other
// programs with what they say), web (pages, records and offers over HTTP). What
// they make of it: gaps (silence and losses in records of audio), stats (medians,
// quantiles, ratios), table (columns of text). And flags and wait, for what every
// command does.
package bench
