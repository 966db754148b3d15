package standin

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/coder/websocket"
)

const (
	rate           = 24000
	bytesPerMS     = 2 * rate / 1000
	maxMessage     = 16 << 20
	writeTimeout   = 10 * time.Second
	defaultChunk   = 200 * time.Millisecond
	defaultSpeed   = 10
	defaultSilence = 500 * time.Millisecond
	defaultTone    = 2 * time.Second
)

// Config configures New. The zero value of every field is its documented
// default.
type Config struct {
	// Token is the bearer token that clients need. Empty means none.
	Token string
	// Speed is how much faster than it is played an answer is made. 0 means 10.
	Speed int
	// Silence is the pause that ends a turn. 0 means 500 ms.
	Silence time.Duration
	// Tone is how long an answer to a text is. 0 means 2 s.
	Tone time.Duration
	// OldNames uses the names of the API's first version for audio in answers.
	OldNames bool
	// OnCall is called for each connection with the query of its request, before
	// the first event. It may block, and nothing is read meanwhile.
	OnCall func(query url.Values)
	// OnEvent is called for every event of a client's except audio, one after
	// the other for each connection. An error ends the connection, with its text
	// as the reason.
	OnEvent func(kind string, event json.RawMessage) error
	// OnAudio is called for every piece of a client's audio, like OnEvent. The
	// samples are valid until it returns.
	OnAudio func(pcm []byte)
	// OnEnd is called when a connection has ended, with why.
	OnEnd func(error)
}

// Server is an http.Handler: every request is a connection, at whatever path.
type Server struct {
	cfg Config
	// live ends all connections when it is done. It ends, and connections are
	// added, under mu.
	live context.Context
	stop context.CancelFunc
	mu   sync.Mutex
	wg   sync.WaitGroup
}

// New returns a Server. Close it when done.
func New(cfg Config) *Server {
	if cfg.Speed <= 0 {
		cfg.Speed = defaultSpeed
	}
	if cfg.Silence <= 0 {
		cfg.Silence = defaultSilence
	}
	if cfg.Tone <= 0 {
		cfg.Tone = defaultTone
	}
	s := &Server{cfg: cfg}
	s.live, s.stop = context.WithCancel(context.Background())
	return s
}

// Close ends all connections and waits for them. Later requests are refused.
func (s *Server) Close() {
	s.mu.Lock()
	s.stop()
	s.mu.Unlock()
	s.wg.Wait()
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.cfg.Token != "" && r.Header.Get("Authorization") != "Bearer "+s.cfg.Token {
		http.Error(w, "unknown token", http.StatusUnauthorized)
		return
	}
	s.mu.Lock()
	if s.live.Err() != nil {
		s.mu.Unlock()
		http.Error(w, "the server stops", http.StatusServiceUnavailable)
		return
	}
	s.wg.Add(1)
	s.mu.Unlock()
	defer s.wg.Done()
	ws, err := websocket.Accept(w, r, nil)
	if err != nil {
		return // Accept has answered
	}
	defer func() { _ = ws.CloseNow() }()
	ws.SetReadLimit(maxMessage)
	if s.cfg.OnCall != nil {
		s.cfg.OnCall(r.URL.Query())
	}
	err = newConversation(s, ws).run(s.live)
	if s.cfg.OnEnd != nil {
		s.cfg.OnEnd(err)
	}
}
