#!/usr/bin/env bash
# Runs every fuzz target of the root module for FUZZTIME (default 20s).
. "$(dirname "$0")/lib.sh"
for pkg in $(go list ./...); do
  dir=$(go list -f '{{.Dir}}' "$pkg")
  for target in $(grep -hoE '^func Fuzz[A-Za-z0-9_]+' "$dir"/*_test.go 2>/dev/null | awk '{print $2}' | sort -u); do
    step "fuzz $target in $pkg"
    go test -run '^$' -fuzz "^$target\$" -fuzztime "${FUZZTIME:-20s}" -fuzzminimizetime 1x "$pkg"
  done
done
