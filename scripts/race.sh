#!/usr/bin/env bash
# Tests of the root and example modules under the race detector.
. "$(dirname "$0")/lib.sh"
go test -race ./... ./examples/...
