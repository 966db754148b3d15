package main

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/usher-rtc/usher/examples/pcm"
	"github.com/usher-rtc/usher/transceiver"
	"github.com/usher-rtc/usher/transceiver/bridge"
)

const frameDuration = 20 * time.Millisecond

// player is the part of transceiver.Audio that a speaker needs.
type player interface {
	Write(ctx context.Context, opus []byte) error
	Interrupt() transceiver.Interrupted
	Stats() transceiver.AudioStats
}

// speaker turns the upstream server's PCM into Opus for the client, and knows of
// which item a client has heard how much. Its methods may be called from several
// goroutines.
type speaker struct {
	mu      sync.Mutex
	encoder bridge.Encoder
	rest    []byte // PCM, less than a frame
	packet  []byte // scratch

	written time.Duration // what was queued, without what was dropped again
	parts   []part        // what may not have been played to its end, oldest first
	playing string        // the response that the client has been told of
	cut     string        // a response of which no more is played
}

// part is the audio of one item.
type part struct {
	response, item string
	content        int
	begin, end     time.Duration // in what was written
	done           bool          // there comes no more
}

// truncation is an item of which the client did not hear everything.
type truncation struct {
	Type    string `json:"type"`
	Item    string `json:"item_id"`
	Content int    `json:"content_index"`
	EndMS   int64  `json:"audio_end_ms"`
}

// audioDelta is a piece of an answer.
type audioDelta struct {
	Response string `json:"response_id"`
	Item     string `json:"item_id"`
	Content  int    `json:"content_index"`
	PCM      []byte `json:"delta"`
}

// add queues a piece of an answer and counts the packets that do not fit. With
// the first piece of a response it tells which one has begun, and which one, if
// any, was playing until now.
func (s *speaker) add(to player, d *audioDelta) (began, before string, lost uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.Response != "" && d.Response == s.cut {
		return "", "", 0, nil
	}
	if n := len(s.parts); n == 0 || s.parts[n-1].item != d.Item || s.parts[n-1].content != d.Content {
		lost, err = s.flush(to)
		s.forget(to)
		s.parts = append(s.parts, part{response: d.Response, item: d.Item, content: d.Content, begin: s.written, end: s.written})
	}
	if err == nil {
		s.rest = append(s.rest, d.PCM...)
		var more uint64
		more, err = s.encode(to)
		lost += more
	}
	if s.playing != d.Response {
		began, before, s.playing = d.Response, s.playing, d.Response
	}
	return began, before, lost, err
}

// noWait makes player.Write refuse what does not fit.
var noWait = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// encode queues whole frames.
func (s *speaker) encode(to player) (lost uint64, err error) {
	size := 2 * pcm.Rate24k.Frame()
	for len(s.rest) >= size {
		if s.packet, err = s.encoder.Encode(s.packet[:0], s.rest[:size]); err != nil {
			return lost, err
		}
		s.rest = slices.Delete(s.rest, 0, size)
		switch err := to.Write(noWait, s.packet); {
		case err == nil:
			s.written += frameDuration
			s.parts[len(s.parts)-1].end = s.written
		case errors.Is(err, context.Canceled):
			lost++
		case !errors.Is(err, transceiver.ErrNotListening):
			return lost, err
		}
	}
	return lost, nil
}

// flush fills the last frame of a part up with silence: nothing follows it.
func (s *speaker) flush(to player) (lost uint64, err error) {
	if len(s.parts) == 0 {
		return 0, nil
	}
	s.parts[len(s.parts)-1].done = true
	if len(s.rest) == 0 {
		return 0, nil
	}
	s.rest = append(s.rest, make([]byte, 2*pcm.Rate24k.Frame()-len(s.rest))...)
	return s.encode(to)
}

// done is for the end of a response, or of the audio of an item in it.
func (s *speaker) done(to player, response string) (lost uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.parts); n == 0 || s.parts[n-1].response != response {
		return 0, nil
	}
	return s.flush(to)
}

// isPlaying reports whether a response is the one that the client was told of.
func (s *speaker) isPlaying(response string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return response != "" && s.playing == response
}

// stopped reports whether a response was the one that the client was told of,
// which it is no more.
func (s *speaker) stopped(response string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.playing != response {
		return false
	}
	s.playing = ""
	return true
}

// forget drops what has been played to its end.
func (s *speaker) forget(to player) {
	played := s.written - to.Stats().QueuedOut
	s.parts = slices.DeleteFunc(s.parts, func(p part) bool { return p.done && p.end <= played })
}

// interrupt drops what is queued. It returns the response that was cut, if the
// client has been told of one, and what was heard of the items that were not
// played to their end. More of these is not played even if it comes.
func (s *speaker) interrupt(to player) (response string, cuts []truncation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// What is left of it was played. Interrupted.Played is the same for one item,
	// but one utterance may have several.
	s.written -= to.Interrupt().Dropped
	for _, p := range s.parts {
		if p.done && p.end <= s.written {
			continue
		}
		heard := max(0, s.written-p.begin)
		cuts = append(cuts, truncation{"conversation.item.truncate", p.item, p.content, heard.Milliseconds()})
		s.cut = p.response
	}
	response, s.playing = s.playing, ""
	s.parts, s.rest = s.parts[:0], s.rest[:0]
	return response, cuts
}
