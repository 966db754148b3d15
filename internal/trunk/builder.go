package trunk

// Builder collects frames for one peer into one datagram, as a list of buffers
// for a gathering write, so that no payload is copied: it keeps the slices
// until the next Reset. Call Reset, Add until it reports false, Seal, then send
// Buffers. It allocates nothing once its list has grown. One goroutine at a
// time.
type Builder struct {
	mtu     int
	size    int
	frames  int
	tagged  []byte   // the header and all frame headers, contiguous: the tag covers exactly this
	pending int      // from here on tagged is not in buffers yet
	buffers [][]byte // pieces of tagged and payloads, in the order of the wire
}

// NewBuilder returns a Builder for datagrams of at most mtu bytes of UDP
// payload; 0 means DefaultMTU. A frame that is larger by itself travels alone.
func NewBuilder(mtu int) *Builder {
	b := new(Builder)
	b.init(mtu)
	return b
}

func (b *Builder) init(mtu int) {
	if mtu <= 0 {
		mtu = DefaultMTU
	}
	b.mtu = min(mtu, MaxDatagram)
	// Never grown, because buffers has pieces of it: several frame headers are
	// within the MTU, one alone may be beyond it.
	b.tagged = make([]byte, 0, max(min(b.mtu, MaxTagged), HeaderLen+MaxFrameHeaderLen))
}

// Reset begins a datagram of TypeData, whatever h says its type is, and lets
// go of all payloads.
func (b *Builder) Reset(h *Header) {
	if b.mtu == 0 {
		b.init(0)
	}
	clear(b.buffers)
	b.buffers = b.buffers[:0]
	b.frames, b.pending, b.size = 0, 0, HeaderLen
	b.tagged = AppendHeader(b.tagged[:0], h)
	b.tagged[1] = byte(TypeData)
}

// Fits reports whether Add would take f. A frame always fits as the first one,
// unless no UDP datagram can hold it.
func (b *Builder) Fits(f *Frame) bool {
	size := b.size + f.headerLen() + len(f.Payload)
	if b.frames == 0 {
		return size <= MaxDatagram
	}
	return size <= b.mtu && b.frames < MaxFrames
}

// Add adds f and reports true, or reports false and does nothing if it does
// not fit. It keeps f.Payload until the next Reset, but not f.
func (b *Builder) Add(f *Frame) bool {
	if !b.Fits(f) {
		return false
	}
	before := len(b.tagged)
	b.tagged = AppendFrameHeader(b.tagged, f)
	b.size += len(b.tagged) - before + len(f.Payload)
	b.frames++
	if len(f.Payload) > 0 {
		b.buffers = append(b.buffers, b.tagged[b.pending:], f.Payload)
		b.pending = len(b.tagged)
	}
	return true
}

// Len returns the number of frames added since Reset.
func (b *Builder) Len() int { return b.frames }

// Size returns the size of the datagram so far in bytes of UDP payload.
func (b *Builder) Size() int { return b.size }

// Seal completes the datagram. It reports false, and there is nothing to send,
// if no frame was added, if Keys lacks the key, or if no hops are left.
func (b *Builder) Seal(keys Keys) bool {
	if b.frames == 0 || !Seal(b.tagged, keys) {
		return false
	}
	if b.pending < len(b.tagged) {
		b.buffers = append(b.buffers, b.tagged[b.pending:])
		b.pending = len(b.tagged)
	}
	return true
}

// Buffers returns the datagram that Seal completed, in pieces. They are valid
// until the next Reset and as long as the payloads are.
func (b *Builder) Buffers() [][]byte { return b.buffers }
