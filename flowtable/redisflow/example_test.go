package redisflow_test

import (
	"fmt"

	"github.com/redis/go-redis/v9"
	"github.com/usher-rtc/usher/flowtable"
	"github.com/usher-rtc/usher/flowtable/redisflow"
)

// A store with a client of its own, for relay.Config.Store. It does not connect
// before it is used, so a relay starts whether Redis is up or not.
func ExampleOpen() {
	store, err := redisflow.Open(redisflow.Config{
		Addrs:      []string{"sentinel-0:26379", "sentinel-1:26379", "sentinel-2:26379"},
		MasterName: "flows",
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close() // after the relay
	var _ flowtable.FlowStore = store
	fmt.Println("ready")
	// Output: ready
}

// Several addresses are a Cluster or Sentinels; Config has to say which.
func ExampleConfig() {
	_, err := redisflow.Open(redisflow.Config{Addrs: []string{"redis-0:6379", "redis-1:6379"}})
	fmt.Println(err)
	// Output: redisflow.Config.Addrs: several addresses need Cluster or MasterName
}

// A program that has a client may share it.
func ExampleNew() {
	client := redis.NewClient(&redis.Options{Addr: "redis:6379", ContextTimeoutEnabled: true})
	defer client.Close()
	store, err := redisflow.New(client, "usher-eu:")
	fmt.Println(store != nil, err)
	// Output: true <nil>
}
