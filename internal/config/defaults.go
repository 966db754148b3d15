package config

import "time"

// Default makes a field that is 0 another value. One that is negative is an error.
func Default[T int | time.Duration](field string, value *T, zero T) error {
	if *value < 0 {
		return Errorf(field, "%v is negative", *value)
	}
	if *value == 0 {
		*value = zero
	}
	return nil
}
