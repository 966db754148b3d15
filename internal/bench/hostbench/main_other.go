//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "hostbench: needs Linux: network namespaces and the scheduler's accounting")
	os.Exit(1)
}
