#!/usr/bin/env bash
# Each module must be tidy and must build by itself, as an importer sees it.
. "$(dirname "$0")/lib.sh"
for m in $(modules); do
  step "tidy and build $m"
  (cd "$m" && GOWORK=off go mod tidy -diff && GOWORK=off go build ./... && GOWORK=off go vet ./...)
done
