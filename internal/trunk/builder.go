package trunk

// Builder collects frames for one peer into one datagram, as a list of buffers
// for a gathering write. Small payloads are copied next to their headers, larger
// ones stay where they are: Builder keeps those slices until the next Reset. Call
// Reset, Add until it reports false, Seal, then send Buffers. It allocates nothing
// once its list has grown. One goroutine at a time.
type Builder struct {
	// CopyAll makes Add copy large payloads, too, for a caller whose buffers do not
	// last until the datagram leaves. It is to be set before the first Add.
	CopyAll bool

	mtu     int
	size    int
	frames  int
	tagged  []byte   // the header and all frame headers, contiguous: the tag covers exactly this
	wire    []byte   // the datagram without the payloads that were not copied
	pending int      // from here on wire is not in buffers yet
	buffers [][]byte // pieces of wire and payloads, in order
}

// maxCopied is the largest payload that is copied. Two buffers more for each frame
// cost the kernel more than that copy costs here; for a full packet of video it is
// the same.
const maxCopied = 512

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
	// Not to be grown once buffers has pieces of it: several frames are within the
	// MTU, one alone may be beyond it.
	const alone = HeaderLen + MaxFrameHeaderLen
	b.tagged = make([]byte, 0, max(min(b.mtu, MaxTagged), alone))
	b.wire = make([]byte, 0, max(b.mtu, alone+maxCopied))
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
	b.wire = b.wire[:HeaderLen] // Seal fills it in
}

// SetHeader replaces the header that Reset was given, for whoever does not know its
// sequence before the datagram leaves.
func (b *Builder) SetHeader(h *Header) {
	AppendHeader(b.tagged[:0], h)
	b.tagged[1] = byte(TypeData)
}

// fits reports whether Add takes f. A frame always fits as the first one,
// unless no UDP datagram can hold it.
func (b *Builder) fits(f *Frame) bool {
	size := b.size + f.headerLen() + len(f.Payload)
	if b.frames == 0 {
		return size <= MaxDatagram
	}
	return size <= b.mtu && b.frames < MaxFrames
}

// Add adds f and reports true, or reports false and does nothing if it does
// not fit. It keeps f.Payload until the next Reset, but not f.
func (b *Builder) Add(f *Frame) bool {
	if !b.fits(f) {
		return false
	}
	before := len(b.tagged)
	b.tagged = AppendFrameHeader(b.tagged, f)
	header := b.tagged[before:]
	b.wire = append(b.wire, header...)
	if b.CopyAll || len(f.Payload) <= maxCopied {
		b.wire = append(b.wire, f.Payload...)
	} else {
		b.buffers = append(b.buffers, b.wire[b.pending:], f.Payload)
		b.pending = len(b.wire)
	}
	b.size += len(header) + len(f.Payload)
	b.frames++
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
	copy(b.wire, b.tagged[:HeaderLen])
	if b.pending < len(b.wire) {
		b.buffers = append(b.buffers, b.wire[b.pending:])
		b.pending = len(b.wire)
	}
	return true
}

// Buffers returns the datagram that Seal completed, in pieces. They are valid
// until the next Reset and as long as the payloads are.
func (b *Builder) Buffers() [][]byte { return b.buffers }
