package redisflow

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/usher-rtc/usher/flowtable"
	"github.com/usher-rtc/usher/internal/config"
)

// Store is a [flowtable.FlowStore] in Redis or Valkey. It is safe for concurrent
// use.
type Store struct {
	client redis.UniversalClient
	prefix string
	own    bool
}

var (
	_ flowtable.FlowStore     = (*Store)(nil)
	_ flowtable.RunIdentifier = (*Store)(nil)
)

// Open makes a Store with a client of its own, which Close closes. It does not
// connect: a relay starts whether its store works or not. The error is a
// *ConfigError.
func Open(c Config) (*Store, error) {
	if err := c.validate(); err != nil {
		return nil, config.In("redisflow.Config", err)
	}
	s := &Store{client: c.client(), prefix: c.Prefix, own: true}
	if s.prefix == "" {
		s.prefix = DefaultPrefix
	}
	return s, nil
}

// New makes a Store that uses a client of the caller's, who closes it. The client
// must have been made with ContextTimeoutEnabled, or it does not keep the relay's
// deadlines; the error is then a *ConfigError. Prefix is as in Config.
func New(client redis.UniversalClient, prefix string) (*Store, error) {
	enabled := true
	switch c := client.(type) {
	case nil:
		return nil, config.Errorf("client", "required")
	case *redis.Client:
		enabled = c.Options().ContextTimeoutEnabled
	case *redis.ClusterClient:
		enabled = c.Options().ContextTimeoutEnabled
	}
	if !enabled {
		return nil, config.Errorf("client", "needs ContextTimeoutEnabled")
	}
	if prefix == "" {
		prefix = DefaultPrefix
	}
	return &Store{client: client, prefix: prefix}, nil
}

// Close closes the client that Open made, and does nothing after New. Close the
// relays that use the Store first.
func (s *Store) Close() error {
	if !s.own {
		return nil
	}
	return s.client.Close()
}

func (s *Store) key(k flowtable.Key) string {
	b := make([]byte, 0, len(s.prefix)+64)
	return string(k.AppendText(append(b, s.prefix...)))
}

// Save implements [flowtable.FlowStore] with one pipeline for each node.
func (s *Store) Save(ctx context.Context, entries []flowtable.Entry, ttl time.Duration) error {
	if err := flowtable.CheckSave(entries, ttl); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil || len(entries) == 0 {
		return err
	}
	pipe := s.client.Pipeline()
	for i := range entries {
		pipe.Set(ctx, s.key(entries[i].Key), entries[i].Value, ttl)
	}
	_, err := pipe.Exec(ctx)
	return reason(ctx, err)
}

// unusable stands for what is in the place of a value and is none, a list for
// instance. It is longer than any value, so nobody takes it for one.
var unusable = make([]byte, flowtable.MaxValueLen+1)

// Load implements [flowtable.FlowStore] with one pipeline for each node.
func (s *Store) Load(ctx context.Context, keys []flowtable.Key) ([][]byte, error) {
	values := make([][]byte, len(keys))
	if err := ctx.Err(); err != nil || len(keys) == 0 {
		return values, err
	}
	pipe := s.client.Pipeline()
	answers := make([]*redis.StringCmd, len(keys))
	for i, k := range keys {
		// One byte more than a value may have shows that it is too long.
		answers[i] = pipe.GetRange(ctx, s.key(k), 0, flowtable.MaxValueLen)
	}
	_, execErr := pipe.Exec(ctx)
	var firstErr error
	for i, a := range answers {
		b, err := a.Bytes()
		switch {
		case err == nil && len(b) > 0:
			values[i] = b
		case err == nil, errors.Is(err, redis.Nil):
		case strings.HasPrefix(err.Error(), "WRONGTYPE"):
			values[i] = append([]byte(nil), unusable...)
		case firstErr == nil:
			firstErr = err
		}
	}
	if firstErr == nil && execErr != nil && !strings.HasPrefix(execErr.Error(), "WRONGTYPE") {
		firstErr = execErr
	}
	return values, reason(ctx, firstErr)
}

// RunID implements [flowtable.RunIdentifier] with INFO: the run_id of the server, or
// those of all masters of a Cluster. It changes with a restart and with a failover,
// after which the last writes may be missing; not with FLUSHALL. A login that may not
// use INFO gets an error, and nothing depends on it but the time to the next refresh.
func (s *Store) RunID(ctx context.Context) (string, error) {
	cluster, ok := s.client.(*redis.ClusterClient)
	if !ok {
		id, err := runID(ctx, s.client)
		return id, reason(ctx, err)
	}
	var mu sync.Mutex
	var ids []string
	err := cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		id, err := runID(ctx, node)
		mu.Lock()
		defer mu.Unlock()
		ids = append(ids, id)
		return err
	})
	if err != nil {
		return "", reason(ctx, err)
	}
	slices.Sort(ids)
	return strings.Join(ids, " "), nil
}

var errNoRunID = errors.New("redisflow: the server's INFO has no run_id")

func runID(ctx context.Context, node redis.Cmdable) (string, error) {
	info, err := node.Info(ctx, "server").Result()
	if err != nil {
		return "", err
	}
	_, rest, ok := strings.Cut(info, "run_id:")
	id, _, _ := strings.Cut(rest, "\r\n")
	if !ok || id == "" {
		return "", errNoRunID
	}
	return id, nil
}

// reason is err, or why ctx is done, which the client sometimes only says in
// words of its own.
func reason(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if cause := ctx.Err(); cause != nil && !errors.Is(err, cause) {
		return errors.Join(cause, err)
	}
	return err
}
