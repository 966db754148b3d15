//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "relaybench: needs Linux: raw sockets, network namespaces and its scheduler's accounting")
	os.Exit(1)
}
