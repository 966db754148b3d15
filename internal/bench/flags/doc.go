// Package flags checks the flags of the commands that measure: numbers within
// bounds ([InRange]), names out of a list ([SomeOf]), and other defaults with
// -quick ([Quick]).
//
// It owns no flags: those of a *flag.FlagSet that has been parsed are looked up by
// name. A name that the set does not have is a mistake in the program and panics.
package flags
