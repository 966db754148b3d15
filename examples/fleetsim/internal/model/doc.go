// Package model computes a fleet from inputs, with formulas alone: how many relays
// and transceivers, what they carry, and what a loss costs. docs/scale.md derives
// the formulas.
//
// It owns the arithmetic. It refuses to sample anything: the simulation in the
// sibling package, which must not import this one and which this one must not
// import, checks it.
package model
