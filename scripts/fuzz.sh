#!/usr/bin/env bash
# Runs every fuzz target of the root module for FUZZTIME (default 20s). The go
# command sometimes reports its own time limit as a failure, "context deadline
# exceeded" without a failing input: that is the end of the run, not a finding.
. "$(dirname "$0")/lib.sh"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
for pkg in $(go list ./...); do
  dir=$(go list -f '{{.Dir}}' "$pkg")
  for target in $(grep -hoE '^func Fuzz[A-Za-z0-9_]+' "$dir"/*_test.go 2>/dev/null | awk '{print $2}' | sort -u); do
    step "fuzz $target in $pkg"
    if go test -run '^$' -fuzz "^$target\$" -fuzztime "${FUZZTIME:-20s}" -fuzzminimizetime 1x "$pkg" 2>&1 | tee "$log"; then
      continue
    fi
    if grep -q 'Failing input' "$log" || ! grep -q '^ *context deadline exceeded$' "$log"; then
      exit 1
    fi
  done
done
