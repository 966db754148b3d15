package config

// Default makes a field that is 0 another value, a number or a time.Duration. One
// that is negative is an error.
func Default[T ~int | ~int64](field string, value *T, zero T) error {
	if *value < 0 {
		return Errorf(field, "%v is negative", *value)
	}
	if *value == 0 {
		*value = zero
	}
	return nil
}
