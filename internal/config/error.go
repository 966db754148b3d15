// Package config holds the error that every constructor of this module
// returns for a bad configuration, the checks that several of them make, and what
// configuration files have in common. It owns no configuration itself.
package config

import (
	"errors"
	"fmt"
)

// Error says which field of a configuration is wrong and what to do about it.
// Find it with [errors.As].
type Error struct {
	// Config is the struct that has the field, "relay.Config" for example, where
	// the constructor says so; otherwise empty.
	Config string
	// Field is the name of the field, with an index for a slice: "Ingresses[1].Listen".
	Field string
	// Problem says what is wrong with it and, where that is not obvious, what would be right.
	Problem string
}

// Error implements the error interface.
func (e *Error) Error() string {
	if e.Config != "" {
		return e.Config + "." + e.Field + ": " + e.Problem
	}
	return e.Field + ": " + e.Problem
}

// Errorf makes an Error for a field.
func Errorf(field, format string, args ...any) error {
	return &Error{Field: field, Problem: fmt.Sprintf(format, args...)}
}

// In returns err, and if it is an Error that does not say yet whose field it is
// about, makes it say so: a program that has several configurations prints which.
func In(name string, err error) error {
	var e *Error
	if errors.As(err, &e) && e.Config == "" {
		e.Config = name
	}
	return err
}
