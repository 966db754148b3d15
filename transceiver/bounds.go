package transceiver

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/pion/webrtc/v4"
)

// What one client may have open. Pion has no limits of its own: each SSRC that
// an RTP packet or a report names costs it a stream, each data channel 64 KB
// unless it is detached. All of it is far beyond what a page needs.
const (
	// maxStreams are the media streams that are open at once, two for each
	// track of the client's and one for each of the Host's.
	maxStreams = 512
	// maxUnread is what the streams of a session may hold together, in bytes.
	maxUnread = 4 << 20
	// maxChannels are the data channels of the client's that are open at once,
	// and maxChannelsEver those of the whole session: Pion remembers each.
	maxChannels, maxChannelsEver = 128, 1 << 14
)

// bounds counts what a client has open, and ends the session when it is too much.
type bounds struct {
	exceeded func() // may be called more than once, with locks of Pion's held

	streams atomic.Int32
	unread  atomic.Int64 // bytes of memory, used or not

	mu       sync.Mutex
	channels []*webrtc.DataChannel // the open ones, and some that have closed since
	ever     int
}

// stream counts a media stream in or out.
func (b *bounds) stream(n int32) {
	if b.streams.Add(n) > maxStreams {
		b.exceeded()
	}
}

// hold takes memory for what is unread, and reports whether there was room.
func (b *bounds) hold(bytes int) bool {
	if b.unread.Add(int64(bytes)) > maxUnread {
		b.unread.Add(-int64(bytes))
		return false
	}
	return true
}

// release gives back what hold took.
func (b *bounds) release(bytes int) { b.unread.Add(-int64(bytes)) }

// channel counts a data channel that the client has opened.
func (b *bounds) channel(d *webrtc.DataChannel) {
	b.mu.Lock()
	b.channels = append(b.channels, d)
	if len(b.channels) > maxChannels {
		b.channels = slices.DeleteFunc(b.channels, func(d *webrtc.DataChannel) bool {
			return d.ReadyState() == webrtc.DataChannelStateClosed
		})
	}
	b.ever++
	over := len(b.channels) > maxChannels || b.ever > maxChannelsEver
	b.mu.Unlock()
	if over {
		b.exceeded()
	}
}
