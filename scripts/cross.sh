#!/usr/bin/env bash
# The portable path must compile where most of our users develop.
. "$(dirname "$0")/lib.sh"
for os in darwin windows; do
  step "vet for $os"
  GOOS=$os GOARCH=arm64 CGO_ENABLED=0 go vet ./... ./examples/...
done
