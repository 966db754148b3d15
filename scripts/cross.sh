#!/usr/bin/env bash
# The portable path must compile where most of our users develop. The end-to-end
# tests are not for Windows: they end browsers by their process groups.
. "$(dirname "$0")/lib.sh"
for os in darwin windows; do
  step "vet for $os"
  GOOS=$os GOARCH=arm64 CGO_ENABLED=0 go vet ./... ./examples/... ./examples/deploy/... ./flowtable/redisflow/... ./internal/bench/...
done
