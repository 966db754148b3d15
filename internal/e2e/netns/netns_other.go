//go:build !linux

package netns

import "errors"

var errLinux = errors.New("network namespaces need Linux")

// Namespace is a network namespace; there are none on this system.
type Namespace struct{}

// Available reports that this system has no network namespaces.
func Available() error { return errLinux }

// New fails on this system.
func New() (*Namespace, error) { return nil, errLinux }

// Do fails on this system.
func (n *Namespace) Do(func() error) error { return errLinux }

// IP fails on this system.
func (n *Namespace) IP(...string) error { return errLinux }

// Close does nothing on this system.
func (n *Namespace) Close() error { return nil }
