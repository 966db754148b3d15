// Package inputs holds the numbers that a fleet is planned from, each with its
// unit and where it comes from: a command of this repository that measures it, a
// default of the library, or an assumption to replace with one's own.
//
// It owns reading and checking them. It refuses to compute anything, so that the
// formulas and the simulation share numbers and nothing else.
package inputs
