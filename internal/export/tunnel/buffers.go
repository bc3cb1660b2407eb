package tunnel

import (
	"math/bits"
	"sync"
	"sync/atomic"
)

const (
	// The smallest buffer is 4 KiB, the largest maxPieceBytes.
	minBufferBits = 12
	bufferClasses = 6
)

// buffers are pools of buffers for data that has arrived, one for each power of two. The garbage collector frees unused
// ones.
type buffers struct {
	pools [bufferClasses]sync.Pool
	// used is how many bytes are out of the pools, and peak the most that ever were.
	used, peak atomic.Int64
}

// buffer has one owner at a time.
type buffer struct {
	data  []byte
	class int
}

func bufferClass(n int) int { return max(bits.Len(uint(max(n, 1)-1))-minBufferBits, 0) }

// bufferBytes returns how much memory a buffer of n bytes takes. It is also what a piece of n bytes costs in credit, so
// that credit bounds memory.
func bufferBytes(n int) int64 { return 1 << (bufferClass(n) + minBufferBits) }

// getBuffer returns a buffer of n bytes, at most maxPieceBytes, with undefined content.
func (p *buffers) getBuffer(n int) *buffer {
	class := bufferClass(n)
	b, ok := p.pools[class].Get().(*buffer)
	if !ok {
		b = &buffer{data: make([]byte, 1<<(class+minBufferBits)), class: class}
	}
	b.data = b.data[:n]
	for used, peak := p.used.Add(int64(cap(b.data))), p.peak.Load(); used > peak && !p.peak.CompareAndSwap(peak, used); {
		peak = p.peak.Load()
	}
	return b
}

func (p *buffers) putBuffer(b *buffer) {
	if b != nil {
		p.used.Add(-int64(cap(b.data)))
		p.pools[b.class].Put(b)
	}
}
