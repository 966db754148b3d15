module github.com/usher-rtc/usher/flowtable/redisflow

go 1.25.0

require (
	github.com/redis/go-redis/v9 v9.22.0
	github.com/usher-rtc/usher v0.0.0
	go.uber.org/goleak v1.3.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/dchest/siphash v1.2.3 // indirect
	go.uber.org/atomic v1.11.0 // indirect
	golang.org/x/sys v0.41.0 // indirect
)

replace github.com/usher-rtc/usher => ../..
