#!/usr/bin/env bash
# Tests of every module under the race detector, but for those that measure, drive
# browsers, run a fleet or render manifests: the detector would change what they
# find, or lengthen them for code that is tested here already.
. "$(dirname "$0")/lib.sh"
tests -race ./... ./examples/... ./internal/e2e/link ./internal/e2e/tail \
  ./internal/bench/{callers,drill,flags,gaps,procs,stats,table,wait,web}
step "flow store"
# What is left out waits for real servers under load, with deadlines.
tests -race -skip='TestFullRedis|Failover' ./flowtable/redisflow/...
