// Package config holds the error that every constructor of this module
// returns for a bad configuration, and what its configuration files have in
// common. It owns no configuration itself.
package config

import "fmt"

// Error says which field of a configuration is wrong and what to do about it.
// Find it with [errors.As].
type Error struct {
	// Field is the name of the field, with an index for a slice: "Ingresses[1].Listen".
	Field string
	// Problem says what is wrong with it and, where that is not obvious, what would be right.
	Problem string
}

// Error implements the error interface.
func (e *Error) Error() string { return e.Field + ": " + e.Problem }

// Errorf makes an Error for a field.
func Errorf(field, format string, args ...any) error {
	return &Error{Field: field, Problem: fmt.Sprintf(format, args...)}
}
