//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "drill: needs Linux: it makes a network namespace")
	os.Exit(1)
}
