# A short index: each target calls the script that CI calls too.
.PHONY: test race lint tidy cross fuzz e2e drill bench bench-relay bench-host bench-voice fleet ci

test:   ## every module, as in the README, one package at a time
	./scripts/test.sh
race:   ## every module but what measures, under the race detector
	./scripts/race.sh
lint:   ## golangci-lint, built once and cached
	./scripts/lint.sh
tidy:   ## go.mod of every module is tidy and builds without the workspace
	./scripts/tidy.sh
cross:  ## every package but the end-to-end tests builds for darwin and windows
	./scripts/cross.sh
fuzz:   ## FUZZTIME=20s of every fuzz target
	./scripts/fuzz.sh
e2e:    ## every end-to-end test, moving browsers included; about twenty minutes
	USHER_E2E=all go test -timeout 40m ./internal/e2e/...
drill:  ## what a fleet's callers notice when parts of it fail; as root, with 200 calls and two browsers
	go run ./internal/bench/drill
bench:  ## Go benchmarks of the packages on the packet path
	go test -run '^$$' -bench . ./relay ./ufrag ./flowtable
bench-relay: ## usher beside nginx, coturn, pion/turn, naive Go, C and nftables; about an hour
	go run ./internal/bench/relaybench
bench-host: ## the Host beside stock Pion, in browsers too
	go run ./internal/bench/hostbench
bench-voice: ## mouth to ear through relay, Host, bridge and a service, and 250 calls at once; three minutes
	go run ./internal/bench/voice
fleet:  ## two regions of edges, cluster relays and transceivers: where calls land, round trips, roll-outs; as root, three minutes
	go run ./internal/bench/fleet
ci:     ## all of the above, with the real browsers
	bash .ci/run
