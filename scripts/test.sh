#!/usr/bin/env bash
# The README's test command, one package at a time: drills and browser tests measure.
. "$(dirname "$0")/lib.sh"
export GOFLAGS=-p=1
tests work
