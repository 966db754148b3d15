package main

import (
	"context"
	"net/netip"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/usher-rtc/usher/examples/fleetsim/internal/inputs"
	"github.com/usher-rtc/usher/flowtable"
	"github.com/usher-rtc/usher/flowtable/redisflow"
	"github.com/usher-rtc/usher/internal/parts"
)

// TestRedisCosts measures what an entry costs in a real Redis: -v prints it. The
// memory must be what the plan takes it for; processor time is not held against
// anything, because it is the machine's.
func TestRedisCosts(t *testing.T) {
	client := startRedis(t)
	store, err := redisflow.New(client, redisflow.DefaultPrefix)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	const entries, batch = 200_000, 512
	before, cpu := info(t, client, "used_memory"), processor(t, client)
	list := make([]flowtable.Entry, 0, batch)
	value := make([]byte, flowtable.ValueLen)
	for i := range entries {
		client := netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, byte(i >> 16), byte(i >> 8), byte(i)}), uint16(10_000+i%50_000))
		list = append(list, flowtable.Entry{Key: flowtable.Key{Client: client, Ingress: 1}, Value: value})
		if len(list) == batch || i == entries-1 {
			if err := store.Save(ctx, list, 10*time.Minute); err != nil {
				t.Fatal(err)
			}
			list = list[:0]
		}
	}
	bytes := (info(t, client, "used_memory") - before) / entries
	writes := entries / (processor(t, client) - cpu)
	t.Logf("redis-entry-bytes %.0f", bytes)
	t.Logf("redis-writes %.0f per CPU-second", writes)
	if want, _ := inputs.Default(); bytes < 0.75*want.RedisEntryBytes || bytes > 1.25*want.RedisEntryBytes {
		t.Errorf("%.0f bytes an entry; the plan takes it for %.0f", bytes, want.RedisEntryBytes)
	}
}

// startRedis starts a server on a socket of its own.
func startRedis(t *testing.T) *redis.Client {
	parts.Need(t, parts.Program("redis-server", "redis-server"))
	dir := t.TempDir()
	socket := filepath.Join(dir, "redis")
	server := exec.CommandContext(context.WithoutCancel(t.Context()), "redis-server", "--port", "0", "--unixsocket", socket,
		"--dir", dir, "--save", "", "--appendonly", "no")
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	client := redis.NewClient(&redis.Options{Network: "unix", Addr: socket, ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = client.Close() })
	for deadline := time.Now().Add(time.Minute); client.Ping(t.Context()).Err() != nil; {
		if time.Now().After(deadline) {
			t.Fatal("redis-server does not answer")
		}
		time.Sleep(20 * time.Millisecond)
	}
	return client
}

func processor(t *testing.T, client *redis.Client) float64 {
	return info(t, client, "used_cpu_sys") + info(t, client, "used_cpu_user")
}

func info(t *testing.T, client *redis.Client, name string) float64 {
	t.Helper()
	text, err := client.Info(t.Context(), "everything").Result()
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^` + name + `:([0-9.]+)`).FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("no %s", name)
	}
	v, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}
