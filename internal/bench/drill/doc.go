// Drill breaks a fleet in all the ways that it must survive and measures what its
// callers notice: real processes (relayd, transceiverd, redis-server), Pion
// callers with audio both ways, and a call of Chromium's and of Firefox'.
//
//	go run ./internal/bench/drill [-quick] [-drills PATTERN]
//
// It prints a line a drill and ends with status 1 if a bound is not kept, or if
// one is kept although the mechanism behind it is switched off. docs/drills.md
// says what the lines mean and what each drill does.
//
// It owns the fleet, the balancer in front of it, and the judgement. It changes
// nothing outside a network namespace of its own, and needs root to make one.
package main
