// Package wait waits: for a time ([For]), and for something to become true
// ([Until]), in a way that a context ends.
//
// It owns nothing and knows nothing of what is waited for.
package wait
