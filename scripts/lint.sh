#!/usr/bin/env bash
# Runs golangci-lint over every module. The tool is built from the module
# proxy at a fixed version and kept in the user's cache.
. "$(dirname "$0")/lib.sh"
version=v2.15.0
bin="${XDG_CACHE_HOME:-$HOME/.cache}/usher/golangci-lint-$version"
if [ ! -x "$bin/golangci-lint" ]; then
  step "building golangci-lint $version"
  GOWORK=off GOBIN="$bin" go install "github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$version"
fi
for m in $(modules); do
  step "lint $m"
  (cd "$m" && "$bin/golangci-lint" run ./...)
done
