package main

import (
	"context"
	"time"
)

// The bounds. Those of browsers are the same unless a drill says otherwise.
const (
	// recovery is what a relay that comes back may cost beyond its outage.
	recovery = 100 * time.Millisecond
	// silentRecovery is the same when nothing flows and only keepalives tell.
	silentRecovery = 1200 * time.Millisecond
	// storeRecovery is what a flow may cost that moves to a relay with the store.
	storeRecovery = 50 * time.Millisecond
	// nextCheck is when a client of Pion's checks next, every 2 s, and a bit more.
	nextCheck = 2300 * time.Millisecond
	// jitter is what two busy cores do to packets when nothing happens at all.
	jitter = 100 * time.Millisecond
)

const (
	withoutLearning      = "-skip-learning"
	withoutAnnouncements = "-skip-announcements"
)

// few is a fleet with something switched off.
func few(pl plan) func(*runner) plan {
	return func(*runner) plan {
		pl.sessions, pl.hosts = offSessions, 2
		return pl
	}
}

func many(pl plan) func(*runner) plan {
	return func(r *runner) plan {
		pl.sessions, pl.hosts, pl.browsers = r.sessions, 2, r.options.browsers
		return pl
	}
}

// stages are all of them, in the order in which they run.
var stages []stage

func init() {
	stages = []stage{
		{name: "one relay", plan: many(plan{}), drills: []drill{
			{"steady", steady},
			{"kill", kill},
			{"kill-listening", killListening},
			{"kill-silent", killSilent},
			{"kill-rebinding", killRebinding},
			{"kill-roaming", killRoaming},
			{"socket-error", socketError},
		}},
		{name: "one relay, nothing announced", plan: few(plan{hostFlags: []string{withoutAnnouncements}}), drills: []drill{
			{"kill-learning-only", kill},
			{"off/kill-silent-without-announcements", killSilentOff},
			{"off/upgrade-without-handover", upgradeOff},
		}},
		{name: "one relay, nothing learned", plan: few(plan{relayFlags: []string{withoutLearning}}), drills: []drill{
			{"kill-announcements-only", kill},
		}},
		{
			name:   "one relay, nothing announced nor learned",
			plan:   few(plan{relayFlags: []string{withoutLearning}, hostFlags: []string{withoutAnnouncements}}),
			drills: []drill{{"off/kill-without-announcements-and-learning", killOff}},
		},
		{
			name:   "one relay, nothing announced nor learned, a store",
			plan:   few(plan{redis: true, relayFlags: []string{withoutLearning}, hostFlags: []string{withoutAnnouncements}}),
			drills: []drill{{"kill-store-only", kill}},
		},
		{name: "a relay that hands over", plan: many(plan{handover: true}), drills: []drill{{"upgrade", upgrade}}},
		{name: "three relays", plan: many(threeRelays(false)), drills: []drill{
			{"move-draining", moveDraining},
			{"off/move-without-store-and-drain", moveOff},
			{"off/one-of-three-dies-without-store", oneDiesOff},
		}},
		{name: "three relays with a store", plan: many(threeRelays(true)), drills: []drill{
			{"move-store", moveStore},
			{"one-of-three-dies-store", oneDies},
		}},
		{name: "a store that fails", plan: many(storeFails()), drills: []drill{
			{"kill-store", kill},
			{"redis-stopped", redisStopped},
			{"redis-hung", redisHung},
			{"redis-slow", redisSlow},
			{"redis-empty", redisEmpty},
			{"redis-forged", redisForged},
		}},
		{name: "transceivers", plan: many(plan{}), drills: []drill{
			{"transceiver-drained", hostDrained},
			{"transceiver-killed", hostKilled},
			{"address-reused", addressReused},
			{"address-echoing", addressEchoing},
		}},
		{
			name:   "transceivers that do not drain",
			plan:   few(plan{hostFlags: []string{"-drain", "1ms"}}),
			drills: []drill{{"off/transceiver-ended-without-drain", hostEndedOff}},
		},
		{name: "a clock that is set", plan: few(plan{}), programs: steppedPrograms, drills: []drill{
			{"clock-stepped", clockStepped},
			{"clock-stepped-kill", kill},
		}},
	}
}

// threeRelays forget flows soon, so that each drill moves clients to a relay that
// does not know them.
func threeRelays(store bool) plan {
	return plan{relays: 3, meet: true, redis: store, relayFlags: []string{"-idle", moveIdle.String()}}
}

// storeFails has a short life of entries: a relay that has not tried to write
// while the store was away writes its flows again in a quarter of it.
func storeFails() plan {
	pl := threeRelays(true)
	pl.relays, pl.spare = 2, 1
	pl.relayFlags = append(pl.relayFlags, "-store-ttl", "20s")
	return pl
}

// steady is a drill without an event: what the machine itself does.
func steady(ctx context.Context, f *fleet) error {
	return f.conclude(ctx, f.now(3*time.Second), nil, func(v *verdict) { v.within(jitter).lossless() })
}
