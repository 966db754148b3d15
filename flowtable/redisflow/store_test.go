//go:build unix

package redisflow

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/usher-rtc/usher/flowtable"
	"github.com/usher-rtc/usher/flowtable/flowtest"
)

func open(t testing.TB, c Config) *Store {
	t.Helper()
	s, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func key(n int) flowtable.Key {
	a := netip.AddrFrom4([4]byte{203, 0, byte(n >> 8), byte(n)})
	return flowtable.Key{Client: netip.AddrPortFrom(a, 4000), Ingress: 7}
}

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestOneNode(t *testing.T) {
	each(t, func(t *testing.T, bin string) {
		s := startAs(t, bin)
		flowtest.Run(t, func(t *testing.T) flowtable.FlowStore { return open(t, Config{Addrs: []string{s.addr}}) })
	})
}

func TestOwnClient(t *testing.T) {
	s := start(t)
	flowtest.Run(t, func(t *testing.T) flowtable.FlowStore {
		c := redis.NewClient(&redis.Options{Addr: s.addr, ContextTimeoutEnabled: true})
		t.Cleanup(func() { c.Close() })
		store, err := New(c, "")
		if err != nil {
			t.Fatal(err)
		}
		return store
	})
}

func TestCluster(t *testing.T) {
	each(t, func(t *testing.T, bin string) {
		nodes := startCluster(t, bin)
		flowtest.Run(t, func(t *testing.T) flowtable.FlowStore {
			return open(t, Config{Addrs: addrs(nodes), Cluster: true})
		})
		// The flows are on all nodes.
		for _, n := range nodes {
			if size := n.command("DBSIZE"); size == "0" || size == "" {
				t.Errorf("%s has %q keys", n.addr, size)
			}
		}
	})
}

// The run id is the same until a server is started anew, of one node or of a Cluster
// with one of its nodes, and unknown while one is down.
func TestRunID(t *testing.T) {
	each(t, func(t *testing.T, bin string) {
		one := startAs(t, bin)
		nodes := startCluster(t, bin)
		for name, tc := range map[string]struct {
			store *Store
			node  *server
		}{
			"one node": {open(t, Config{Addrs: []string{one.addr}}), one},
			"cluster":  {open(t, Config{Addrs: addrs(nodes), Cluster: true}), nodes[1]},
		} {
			first, err := tc.store.RunID(within(t, 30*time.Second))
			if err != nil || first == "" {
				t.Fatalf("%s: %q, %v", name, first, err)
			}
			if again, err := tc.store.RunID(within(t, 30*time.Second)); err != nil || again != first {
				t.Errorf("%s: %q became %q, %v", name, first, again, err)
			}
			tc.node.kill()
			if id, err := tc.store.RunID(within(t, 200*time.Millisecond)); err == nil {
				t.Errorf("%s: a dead server has run id %q", name, id)
			}
			tc.node.restart()
			eventually(t, 20*time.Second, name+": another run id", func() bool {
				id, err := tc.store.RunID(within(t, 200*time.Millisecond))
				return err == nil && id != first
			})
		}
	})
}

// A login that may not use INFO costs that and nothing else.
func TestRunIDMayBeForbidden(t *testing.T) {
	srv := start(t)
	srv.must("ACL", "SETUSER", "flows", "on", ">secret", "~"+DefaultPrefix+"*", "+set", "+getrange", "+hello", "+client")
	s := open(t, Config{Addrs: []string{srv.addr}, Username: "flows", Password: "secret"})
	if id, err := s.RunID(within(t, 30*time.Second)); err == nil {
		t.Errorf("run id %q", id)
	}
	if err := s.Save(within(t, 30*time.Second), []flowtable.Entry{{Key: key(1), Value: []byte("v")}}, time.Minute); err != nil {
		t.Error(err)
	}
	values, err := s.Load(within(t, 30*time.Second), []flowtable.Key{key(1)})
	if err != nil || string(values[0]) != "v" {
		t.Errorf("%q, %v", values, err)
	}
}

// One node of a cluster dies: the others' flows are still found, and nobody takes
// the missing ones for absent.
func TestClusterWithADeadNode(t *testing.T) {
	nodes := startCluster(t, binary(t))
	s := open(t, Config{Addrs: addrs(nodes), Cluster: true})
	var entries []flowtable.Entry
	var keys []flowtable.Key
	for i := range 60 {
		keys = append(keys, key(i))
		entries = append(entries, flowtable.Entry{Key: keys[i], Value: []byte{byte(i + 1)}})
	}
	if err := s.Save(within(t, 30*time.Second), entries, time.Minute); err != nil {
		t.Fatal(err)
	}
	nodes[1].kill()
	values, err := s.Load(within(t, 30*time.Second), keys)
	if err == nil {
		t.Fatal("no error, though a third of the slots is gone")
	}
	found := 0
	for i, v := range values {
		if v == nil {
			continue
		}
		found++
		if len(v) != 1 || v[0] != byte(i+1) {
			t.Errorf("%v has %x", keys[i], v)
		}
	}
	if found < 20 || found >= 60 {
		t.Errorf("%d of 60 flows found, want two thirds; %v", found, err)
	}
}

func TestConfigErrorsNameTheField(t *testing.T) {
	one := []string{"127.0.0.1:6379"}
	for _, tc := range []struct {
		field string
		cfg   Config
	}{
		{"Addrs", Config{}},
		{"Addrs", Config{Addrs: []string{"a:1", "b:1"}}},
		{"Addrs[1]", Config{Addrs: []string{"a:1", ""}, Cluster: true}},
		{"MasterName", Config{Addrs: one, Cluster: true, MasterName: "m"}},
		{"DB", Config{Addrs: one, Cluster: true, DB: 1}},
		{"DB", Config{Addrs: one, DB: -1}},
		{"DialTimeout", Config{Addrs: one, DialTimeout: -1}},
		{"PoolSize", Config{Addrs: one, PoolSize: -1}},
	} {
		_, err := Open(tc.cfg)
		var ce *ConfigError
		if !errors.As(err, &ce) || ce.Field != tc.field {
			t.Errorf("%+v: %v, want an error about %s", tc.cfg, err, tc.field)
		}
	}
	c := redis.NewClient(&redis.Options{Addr: one[0]})
	defer c.Close()
	var ce *ConfigError
	if _, err := New(c, ""); !errors.As(err, &ce) || !strings.Contains(ce.Problem, "ContextTimeoutEnabled") {
		t.Errorf("a client without deadlines: %v", err)
	}
	if _, err := New(nil, ""); !errors.As(err, &ce) {
		t.Errorf("no client: %v", err)
	}
}

// C58 and the prefix: what is in Redis is what the documentation says.
func TestKeysInRedis(t *testing.T) {
	srv := start(t)
	s := open(t, Config{Addrs: []string{srv.addr}, Prefix: "a:"})
	other := open(t, Config{Addrs: []string{srv.addr}, Prefix: "b:"})
	mapped := flowtable.Key{Client: netip.MustParseAddrPort("[::ffff:203.0.113.9]:54321"), Ingress: 7}
	if err := s.Save(within(t, 30*time.Second), []flowtable.Entry{{Key: mapped, Value: []byte("v")}}, 5*time.Minute); err != nil {
		t.Fatal(err)
	}
	if got := srv.command("GET", "a:7/203.0.113.9:54321"); got != "v" {
		t.Errorf("the key has %q", got)
	}
	if got := srv.command("DBSIZE"); got != "1" {
		t.Errorf("%s keys", got)
	}
	values, err := other.Load(within(t, 30*time.Second), []flowtable.Key{mapped})
	if err != nil || values[0] != nil {
		t.Errorf("another prefix finds %q, %v", values[0], err)
	}
}

// C77: what others write into Redis is returned short enough to be harmless, is no
// value, and no error either.
func TestForeignValues(t *testing.T) {
	srv := start(t)
	s := open(t, Config{Addrs: []string{srv.addr}})
	name := func(n int) string { return DefaultPrefix + key(n).String() }
	srv.must("SET", name(0), "")
	srv.must("SET", name(1), strings.Repeat("\x00", 1<<20))
	srv.command("RPUSH", name(2), "x")
	srv.must("SET", name(3), "good")
	values, err := s.Load(within(t, 30*time.Second), []flowtable.Key{key(0), key(1), key(2), key(3), key(4)})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{0, flowtable.MaxValueLen + 1, flowtable.MaxValueLen + 1, 4, 0} {
		if len(values[i]) != want {
			t.Errorf("value %d has %d bytes, want %d", i, len(values[i]), want)
		}
	}
	// They can be overwritten.
	for i := range 3 {
		if err := s.Save(within(t, 30*time.Second), []flowtable.Entry{{Key: key(i), Value: []byte("v")}}, time.Minute); err != nil {
			t.Errorf("value %d: %v", i, err)
		}
	}
}

// The deadline holds whatever the server does.
func TestFaultsKeepTheDeadline(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	hung, dead := start(t), start(t)
	hungStore, deadStore := open(t, Config{Addrs: []string{hung.addr}}), open(t, Config{Addrs: []string{dead.addr}})
	for _, s := range []*Store{hungStore, deadStore} {
		if err := s.Save(within(t, 30*time.Second), []flowtable.Entry{{Key: key(1), Value: []byte("v")}}, time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	hung.hang()
	dead.kill()
	for name, s := range map[string]*Store{
		"hung with open connections":  hungStore,
		"dead":                        deadStore,
		"accepts and never answers":   open(t, Config{Addrs: []string{silent.Addr().String()}}),
		"cluster that never answers":  open(t, Config{Addrs: []string{silent.Addr().String()}, Cluster: true}),
		"sentinel that never answers": open(t, Config{Addrs: []string{silent.Addr().String()}, MasterName: "flows"}),
	} {
		const limit = 50 * time.Millisecond
		// Generous, for a busy machine; without a deadline it is 3 s and more.
		const most = 2500 * time.Millisecond
		at := time.Now()
		values, err := s.Load(within(t, limit), []flowtable.Key{key(1)})
		if err == nil || len(values) != 1 || values[0] != nil {
			t.Errorf("%s: %q, %v", name, values, err)
		}
		if d := time.Since(at); d > most {
			t.Errorf("%s: Load took %v", name, d)
		}
		at = time.Now()
		if err := s.Save(within(t, limit), []flowtable.Entry{{Key: key(1), Value: []byte("v")}}, time.Minute); err == nil {
			t.Errorf("%s: Save succeeded", name)
		}
		if d := time.Since(at); d > most {
			t.Errorf("%s: Save took %v", name, d)
		}
	}
	hung.resume()
	dead.restart()
	for _, s := range []*Store{hungStore, deadStore} {
		eventually(t, time.Minute, "the server is used again", func() bool {
			_, err := s.Load(within(t, 500*time.Millisecond), []flowtable.Key{key(1)})
			return err == nil
		})
	}
}

// C75: the master dies three times while flows are written.
func TestSentinelFailover(t *testing.T) {
	master := start(t)
	servers := []*server{master}
	for range 3 {
		servers = append(servers, start(t, "--replicaof", "127.0.0.1", fmt.Sprint(master.port), "--repl-diskless-sync-delay", "0"))
	}
	sentinel := startSentinel(t, master)
	eventually(t, time.Minute, "the Sentinel knows the replicas", func() bool {
		return strings.Contains(sentinel.command("INFO", "sentinel"), "slaves=3")
	})
	s := open(t, Config{Addrs: []string{sentinel.addr}, MasterName: "flows"})
	write := func(n int) error {
		return s.Save(within(t, 200*time.Millisecond), []flowtable.Entry{{Key: key(n), Value: []byte("v")}}, time.Minute)
	}
	eventually(t, time.Minute, "the first write", func() bool { return write(0) == nil })
	n := 0
	for round := range 3 {
		var now *server
		for _, srv := range servers {
			if strings.HasPrefix(srv.command("INFO", "replication"), "# Replication\r\nrole:master") {
				now = srv
			}
		}
		if now == nil {
			t.Fatal("no master")
		}
		now.kill()
		eventually(t, time.Minute, fmt.Sprintf("writes reach the new master, round %d", round), func() bool {
			n++
			return write(n) == nil
		})
		values, err := s.Load(within(t, 30*time.Second), []flowtable.Key{key(n)})
		if err != nil || string(values[0]) != "v" {
			t.Errorf("round %d: %q, %v", round, values[0], err)
		}
	}
}
