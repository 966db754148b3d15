package bridge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"github.com/usher-rtc/usher/internal/config"
	"github.com/usher-rtc/usher/transceiver"
)

// Target is where a service is.
type Target struct {
	// URL is its address: ws, wss, http or https. Secrets belong into Header:
	// errors name the URL.
	URL string
	// Header goes with the request: Authorization, for example. It must not be
	// changed while it is in use.
	Header http.Header
}

// Config configures Attach. The zero value of every field that is not marked
// as required is its documented default.
type Config struct {
	// Target is the service. Required, unless Select is set.
	Target Target
	// Select picks the service for a connection of a session, before each
	// attempt: attempt counts from 0 since the last connection that was good.
	// An error counts as an attempt that failed.
	Select func(ctx context.Context, s *transceiver.Session, attempt int) (Target, error)
	// HTTPClient makes the connections. nil means http.DefaultClient. Its
	// Timeout bounds an attempt in addition to DialTimeout.
	HTTPClient *http.Client

	// Audio configures the session's audio. SendQueue is set by Window.
	Audio transceiver.AudioConfig
	// Events configures the session's data channel. MaxBytes is at most
	// MaxPayload, and that by default.
	Events transceiver.EventsConfig
	// Codecs are what a service may ask for instead of Opus, at most one for
	// each sample rate. Opus packets pass through untouched.
	Codecs []Codec
	// Window is how much audio of the service may be queued for the client.
	// What comes beyond it is dropped and the service is told. 0 means 30 s;
	// at least 1 s and at most 5 min.
	Window time.Duration

	// DialTimeout bounds an attempt to connect, and after it the wait for the
	// service's ready message. 0 means 5 s.
	DialTimeout time.Duration
	// GiveUpAfter is how long attempts may fail in a row, counted from the end
	// of the last connection that lasted 10 s, until the bridge gives up. 0
	// means 30 s.
	GiveUpAfter time.Duration
	// KeepAlive is the time between pings. A pong that is overdue by as much
	// again stops audio to the service, so that at most twice this much of it
	// is on the way. 0 means 1 s.
	KeepAlive time.Duration
	// SilenceTimeout is how long a pong may take before the connection is
	// taken as dead. 0 means 5 s.
	SilenceTimeout time.Duration

	// KeepSession leaves the session alone when the bridge ends: when the
	// service says so, or none could be reached. Otherwise it is closed.
	KeepSession bool
	// OnState is called with the changes of the connection's state, one at a
	// time and in order, on a goroutine of its own. It may block, on
	// Events.Send for example, which waits for the client's data channel to
	// open: the bridge goes on meanwhile. When it returns it gets the newest 16
	// of the changes that it has missed. The end of the bridge waits up to 1 s
	// for it, so that it can say a last word to the page before the session is
	// closed.
	OnState func(*Bridge, Change)
	// Logger gets a line, at level Info, for each connection that was lost and for
	// each session that the service ended. nil means slog.Default().
	Logger *slog.Logger
}

const (
	defaultWindow         = 30 * time.Second
	minWindow             = time.Second
	maxWindow             = 5 * time.Minute
	defaultDialTimeout    = 5 * time.Second
	defaultGiveUpAfter    = 30 * time.Second
	defaultKeepAlive      = time.Second
	defaultSilenceTimeout = 5 * time.Second

	// stableAfter is how long a connection must last to count as good. One
	// that breaks sooner does not reset the attempts, or a service that
	// crashes on every session would be called without end.
	stableAfter = 10 * time.Second
	// The wait between attempts doubles from the first to the last, less up
	// to a half by chance: all sessions of a service fail at the same moment.
	firstBackoff = 100 * time.Millisecond
	maxBackoff   = 5 * time.Second

	// sendSlack is room in the session's queue beyond Window, so that a Write
	// to it never blocks: a blocked one would hold up the interruption behind.
	sendSlack = time.Second
	// maxChanges is how many changes wait for OnState, and lastWord how long the
	// end of a bridge waits for it.
	maxChanges = 16
	lastWord   = time.Second
	// maxMetadata keeps `start` below MaxMessage.
	maxMetadata = 48 << 10
)

// Validate returns what is wrong with the fields, as Attach would at the first
// call: a *ConfigError, or nil. It is for a program's start.
func (c Config) Validate() error { return config.In("bridge.Config", c.validate()) }

func (c *Config) validate() error {
	err := cmp.Or(
		config.Default("Window", &c.Window, defaultWindow),
		config.Default("DialTimeout", &c.DialTimeout, defaultDialTimeout),
		config.Default("GiveUpAfter", &c.GiveUpAfter, defaultGiveUpAfter),
		config.Default("KeepAlive", &c.KeepAlive, defaultKeepAlive),
		config.Default("SilenceTimeout", &c.SilenceTimeout, defaultSilenceTimeout),
	)
	if err != nil {
		return err
	}
	switch {
	case c.Window < minWindow || c.Window > maxWindow:
		return config.Errorf("Window", "%v is outside %v to %v", c.Window, minWindow, maxWindow)
	case c.SilenceTimeout < c.KeepAlive:
		return config.Errorf("SilenceTimeout", "%v is shorter than KeepAlive, %v", c.SilenceTimeout, c.KeepAlive)
	case c.Audio.SendQueue != 0:
		return config.Errorf("Audio.SendQueue", "is set by Window")
	case c.Events.MaxBytes > MaxPayload:
		return config.Errorf("Events.MaxBytes", "%d is more than a message can carry, %d", c.Events.MaxBytes, MaxPayload)
	}
	if err := inPart("Audio", c.Audio.Validate()); err != nil {
		return err
	}
	if err := inPart("Events", c.Events.Validate()); err != nil {
		return err
	}
	if c.Events.MaxBytes == 0 {
		c.Events.MaxBytes = MaxPayload
	}
	c.Audio.SendQueue = c.Window + sendSlack
	if c.Select == nil {
		if err := c.Target.validate(); err != nil {
			return err
		}
	}
	for i, codec := range c.Codecs {
		field := fmt.Sprintf("Codecs[%d]", i)
		if codec == nil {
			return config.Errorf(field, "is nil")
		}
		if _, ok := pcmRate(pcmName(codec.Rate())); !ok {
			return config.Errorf(field, "a rate of %d, want 16000 or 24000", codec.Rate())
		}
		for _, earlier := range c.Codecs[:i] {
			if earlier.Rate() == codec.Rate() {
				return config.Errorf(field, "a second one of rate %d", codec.Rate())
			}
		}
	}
	if c.HTTPClient == nil {
		c.HTTPClient = http.DefaultClient
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return nil
}

// inPart makes an error about a field of a part one about a field of the whole.
func inPart(part string, err error) error {
	var bad *ConfigError
	if errors.As(err, &bad) {
		bad.Field = part + "." + bad.Field
	}
	return err
}

func (t *Target) validate() error {
	u, err := url.Parse(t.URL)
	if err != nil {
		return config.Errorf("Target.URL", "%v", err)
	}
	switch u.Scheme {
	case "ws", "wss", "http", "https":
	default:
		return config.Errorf("Target.URL", "%q is no ws, wss, http or https address", t.URL)
	}
	if u.Host == "" {
		return config.Errorf("Target.URL", "%q has no host", t.URL)
	}
	return nil
}

// names lists the codecs for `start`.
func (c *Config) names() []string {
	names := []string{opusName}
	for _, codec := range c.Codecs {
		names = append(names, pcmName(codec.Rate()))
	}
	return names
}

// codec finds one by its name; nil is Opus.
func (c *Config) codec(name string) (codec Codec, ok bool) {
	if name == "" || name == opusName {
		return nil, true
	}
	for _, codec := range c.Codecs {
		if name == pcmName(codec.Rate()) {
			return codec, true
		}
	}
	return nil, false
}

// State is where a Bridge is.
type State uint8

// The states of a Bridge.
const (
	StateWaiting      State = iota // for the client to connect
	StateConnecting                // to a service, for the first time
	StateReady                     // a service has the session
	StateReconnecting              // the service was lost
	StateEnded                     // for good
)

var stateNames = [...]string{"waiting", "connecting", "ready", "reconnecting", "ended"}

// String returns a name that a page can show.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return "unknown"
}

// MarshalText implements encoding.TextMarshaler, so that JSON has names.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Change is a change of a Bridge's state.
type Change struct {
	// State is the new one. It may be the one before: each failed attempt is
	// a change too.
	State State
	// Connection counts the connections that were ready.
	Connection int
	// Attempt counts attempts since the last connection that was good.
	Attempt int
	// Err is what went wrong before, if something did.
	Err error
}

// Stats are the numbers of a Bridge.
type Stats struct {
	State State
	// Connections counts the ones that were ready.
	Connections int
	// RoundTrip is the newest ping's, to the service and back; 0 before the first.
	RoundTrip time.Duration

	FramesToService   uint64 // audio of the client's
	FramesMissed      uint64 // of the client's, that no service was sent
	FramesUnconfirmed uint64 // sent on connections that broke before a pong confirmed it
	FramesFromService uint64 // messages of audio
	FramesDropped     uint64 // of these, the ones that the client will not get
	EventsToService   uint64
	EventsFromService uint64
	EventsDropped     uint64 // of these, the ones that the client will not get
}
