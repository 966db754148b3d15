package relay

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/usher-rtc/usher/flowtable"
	"github.com/usher-rtc/usher/internal/forward"
	"github.com/usher-rtc/usher/ufrag"
)

const (
	// maxSaves flows wait at most to be written; more are dropped and counted,
	// and come again with the next refresh.
	maxSaves = 1 << 13
	// maxAsks questions wait at most.
	maxAsks = 1 << 10
	// saveBatch and loadBatch are the most entries of one call of the store.
	saveBatch = 512
	loadBatch = 128
	// loaders calls of Load run at once, so that one slow answer does not use up
	// the time of the questions behind it.
	loaders = 2
	// saveTimeout is longer than that of a question, because nobody waits.
	saveTimeout = 2 * time.Second
	// watchEvery is how often a store that can tell is asked whether it is still the
	// same process, watchTimeout for how long.
	watchEvery   = 2 * time.Second
	watchTimeout = 500 * time.Millisecond
	// lastSaveTimeout bounds what Close waits for the store.
	lastSaveTimeout = 500 * time.Millisecond
)

// save is a flow to write.
type save struct {
	key   flowtable.Key
	route ufrag.Route
}

// ask is a question of a worker about a client.
type ask struct {
	key    flowtable.Key
	worker *worker
	at     time.Time
}

// outcome is what came of a question.
type outcome uint8

const (
	outcomeFound  outcome = iota
	outcomeAbsent         // nothing there, or nothing of use
	outcomeFailed         // unknown
)

// reply is the answer to a question.
type reply struct {
	key     flowtable.Key
	route   ufrag.Route
	outcome outcome
}

// storer does all that may wait for the flow store, in goroutines of its own: one
// that writes and some that read. Workers hand it flows and questions through
// bounded queues and never wait for it.
type storer struct {
	store   flowtable.FlowStore
	keys    *ufrag.Keyring
	ttl     time.Duration
	timeout time.Duration
	log     *slog.Logger

	saves chan save
	asks  chan ask
	// ctx ends the reads at Close, quit makes the writer write what is left.
	ctx    context.Context
	cancel context.CancelFunc
	quit   chan struct{}
	done   sync.WaitGroup

	reads, writes breaker
	runID         string // the writer's: of the store, as far as it tells
	// restored counts how often the store worked again after writes had failed, or was
	// another process. Workers then write all their flows soon, for the store may be
	// empty.
	restored atomic.Uint64

	restarts                                    atomic.Uint64
	asked, hits, absent, failed, timeouts, shed atomic.Uint64
	refused                                     [flowtable.NumRefusals]atomic.Uint64
	unusable                                    [forward.NumReasons]atomic.Uint64
	saved, saveErrors, saveDropped              atomic.Uint64

	logMu    sync.Mutex
	loggedAt time.Time
}

func newStorer(c *Config) *storer {
	s := &storer{
		store: c.Store, keys: c.StoreKeys, ttl: c.StoreTTL, timeout: c.StoreTimeout, log: c.Logger,
		saves: make(chan save, maxSaves), asks: make(chan ask, maxAsks),
		quit: make(chan struct{}),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.done.Go(s.write)
	for range loaders {
		s.done.Go(s.load)
	}
	return s
}

// close writes what is left, for a short time, and waits for all goroutines.
func (s *storer) close() {
	s.cancel()
	close(s.quit)
	s.done.Wait()
}

// put hands a flow to the writer. It never waits.
func (s *storer) put(k flowtable.Key, route ufrag.Route) {
	select {
	case s.saves <- save{k, route}:
	default:
		s.saveDropped.Add(1)
	}
}

// busy reports whether the writer is behind. Refreshes, which can wait, leave the
// other half of the queue to news.
func (s *storer) busy() bool { return len(s.saves) > maxSaves/2 }

// ask hands a question to the readers. It never waits; false means that there are
// too many questions already.
func (s *storer) ask(a ask) bool {
	select {
	case s.asks <- a:
		return true
	default:
		return false
	}
}

// write runs in a goroutine and writes flows behind the workers.
func (s *storer) write() {
	batch := make([]save, 0, saveBatch)
	var watch <-chan time.Time
	if _, ok := s.store.(flowtable.RunIdentifier); ok {
		tick := time.NewTicker(watchEvery)
		defer tick.Stop()
		watch = tick.C
		s.watch()
	}
	for {
		select {
		case first := <-s.saves:
			batch = drain(s.saves, append(batch[:0], first))
		case <-watch:
			s.watch()
			continue
		case <-s.quit:
			s.writeRest(batch[:0])
			return
		}
		for !s.writes.allow(time.Now()) {
			select {
			case <-time.After(s.writes.wait(time.Now())):
			case <-s.quit:
				s.saveDropped.Add(uint64(len(batch) + len(s.saves)))
				return
			}
		}
		if !s.writeBatch(s.ctx, batch, saveTimeout) {
			s.writeRest(batch)
			return
		}
	}
}

// watch asks the store whether it is another process than before. One that writes
// cannot reach will be written everything anyway when it is back.
func (s *storer) watch() {
	if state, _ := s.writes.snapshot(); state != BreakerClosed {
		return
	}
	ctx, cancel := context.WithTimeout(s.ctx, watchTimeout)
	defer cancel()
	id, err := s.store.(flowtable.RunIdentifier).RunID(ctx)
	if err != nil || id == "" {
		return
	}
	if s.runID != "" && s.runID != id {
		s.restarts.Add(1)
		s.restored.Add(1)
	}
	s.runID = id
}

// writeRest writes batch and the queue at the end, so that the relay that comes
// next knows the flows of the last moment too.
func (s *storer) writeRest(batch []save) {
	ctx, cancel := context.WithTimeout(context.Background(), lastSaveTimeout)
	defer cancel()
	for {
		batch = drain(s.saves, batch)
		if len(batch) == 0 {
			return
		}
		if ctx.Err() != nil || !s.writes.allow(time.Now()) {
			s.saveDropped.Add(uint64(len(batch) + len(s.saves)))
			return
		}
		s.writeBatch(ctx, batch, lastSaveTimeout)
		batch = batch[:0]
	}
}

// drain appends what is in a queue to a batch, up to its capacity.
func drain[T any](queue chan T, batch []T) []T {
	for len(batch) < cap(batch) {
		select {
		case v := <-queue:
			batch = append(batch, v)
		default:
			return batch
		}
	}
	return batch
}

// writeBatch writes a batch. It reports false if ctx was cancelled before it could.
func (s *storer) writeBatch(ctx context.Context, batch []save, timeout time.Duration) bool {
	expires := time.Now().Add(s.ttl)
	entries := make([]flowtable.Entry, 0, len(batch))
	for i := range batch {
		v, err := flowtable.Value{Route: batch[i].route, Expires: expires}.Seal(nil, batch[i].key, s.keys)
		if err != nil {
			s.saveErrors.Add(1) // the keyring was emptied while running
			continue
		}
		entries = append(entries, flowtable.Entry{Key: batch[i].key, Value: v})
	}
	limited, cancel := context.WithTimeout(ctx, timeout)
	err := s.store.Save(limited, entries, s.ttl)
	cancel()
	if err != nil && errors.Is(ctx.Err(), context.Canceled) {
		return false
	}
	if s.writes.done(time.Now(), err == nil) {
		s.restored.Add(1)
	}
	if err != nil {
		s.saveErrors.Add(uint64(len(entries)))
		s.complain("writing to the flow store fails", err)
		return true
	}
	s.saved.Add(uint64(len(entries)))
	return true
}

// load runs in a goroutine and answers questions.
func (s *storer) load() {
	batch := make([]ask, 0, loadBatch)
	for {
		select {
		case first := <-s.asks:
			batch = drain(s.asks, append(batch[:0], first))
		case <-s.ctx.Done():
			return
		}
		s.loadBatch(batch)
	}
}

func (s *storer) loadBatch(batch []ask) {
	now := time.Now()
	// Who has waited too long already is not worth the store's time.
	live := batch[:0]
	for _, a := range batch {
		if now.Sub(a.at) < s.timeout {
			live = append(live, a)
			continue
		}
		s.timeouts.Add(1)
		s.failed.Add(1)
		a.worker.inbox.put(reply{key: a.key, outcome: outcomeFailed})
		a.worker.group.Wake()
	}
	if len(live) == 0 {
		return
	}
	keys := make([]flowtable.Key, len(live))
	for i := range live {
		keys[i] = live[i].key
	}
	values := make([][]byte, len(live))
	failed := true
	if s.reads.allow(now) {
		var err error
		values, err = s.consult(keys)
		failed = err != nil
	} else {
		s.shed.Add(uint64(len(live)))
	}
	for i, a := range live {
		a.worker.inbox.put(s.judge(a.key, values[i], failed))
	}
	for i, a := range live {
		if i == 0 || a.worker != live[i-1].worker {
			a.worker.group.Wake()
		}
	}
}

var errWrongCount = errors.New("the flow store answered another number of questions")

// consult calls the store once. It returns as many values as keys.
func (s *storer) consult(keys []flowtable.Key) ([][]byte, error) {
	ctx, cancel := context.WithTimeout(s.ctx, s.timeout)
	defer cancel()
	s.asked.Add(uint64(len(keys)))
	values, err := s.store.Load(ctx, keys)
	if len(values) != len(keys) {
		values = make([][]byte, len(keys))
		if err == nil {
			err = errWrongCount
		}
	}
	if s.ctx.Err() != nil {
		return values, err // the relay closes; that is nobody's fault
	}
	some := err == nil
	for _, v := range values {
		some = some || v != nil
	}
	s.reads.done(time.Now(), some)
	if err != nil {
		var timeout net.Error
		if errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout() {
			s.timeouts.Add(uint64(len(keys)))
		}
		s.complain("asking the flow store fails", err)
	}
	return values, err
}

// judge turns a value into an answer. Whoever can write to the store may have
// written it.
func (s *storer) judge(k flowtable.Key, value []byte, failed bool) reply {
	switch {
	case value == nil && failed:
		s.failed.Add(1)
		return reply{key: k, outcome: outcomeFailed}
	case value == nil:
		s.absent.Add(1)
		return reply{key: k, outcome: outcomeAbsent}
	}
	v, why := flowtable.OpenValue(value, k, s.keys, time.Now())
	if why != flowtable.Accepted {
		s.refused[why].Add(1)
		return reply{key: k, outcome: outcomeAbsent}
	}
	return reply{key: k, route: v.Route, outcome: outcomeFound}
}

// complain logs a failure, one line a minute whatever fails.
func (s *storer) complain(what string, err error) {
	s.logMu.Lock()
	now := time.Now()
	due := s.loggedAt.IsZero() || now.Sub(s.loggedAt) >= logEvery
	if due {
		s.loggedAt = now
	}
	s.logMu.Unlock()
	if due {
		s.log.Warn(what+"; flows live on, those of a restarted relay come back later",
			"error", err, "failed_lookups", s.failed.Load(), "failed_writes", s.saveErrors.Load())
	}
}

// inbox holds the answers for a worker.
type inbox struct {
	any     atomic.Bool
	mu      sync.Mutex
	replies []reply
}

func (i *inbox) put(r reply) {
	i.mu.Lock()
	i.replies = append(i.replies, r)
	i.any.Store(true)
	i.mu.Unlock()
}

// take exchanges the answers for an empty slice of the caller's.
func (i *inbox) take(empty []reply) []reply {
	if !i.any.Load() {
		return empty
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.any.Store(false)
	full := i.replies
	i.replies = empty
	return full
}
