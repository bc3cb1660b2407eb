package nbd

import (
	"math/bits"
	"sync"
)

const (
	// The smallest and the largest buffer are 4 KiB and 64 MiB.
	minBufferBits  = 12
	maxBufferBytes = 64 << 20
	bufferClasses  = 15
)

// buffers are pools of payload buffers, by powers of two. What nobody uses goes with the garbage.
type buffers struct {
	pools [bufferClasses]sync.Pool
}

// buffer has one owner at a time.
type buffer struct {
	data  []byte
	class int
}

func bufferClass(n int64) int { return max(bits.Len64(uint64(max(n, 1)-1))-minBufferBits, 0) }

// bufferBytes is how much memory a buffer of n bytes has.
func bufferBytes(n int64) int64 { return 1 << (bufferClass(n) + minBufferBits) }

// get is a buffer of n bytes, maxBufferBytes at most, with any content.
func (p *buffers) get(n int64) *buffer {
	class := bufferClass(n)
	b, ok := p.pools[class].Get().(*buffer)
	if !ok {
		b = &buffer{data: make([]byte, 1<<(class+minBufferBits)), class: class}
	}
	b.data = b.data[:n]
	return b
}

func (p *buffers) put(b *buffer) {
	if b != nil {
		p.pools[b.class].Put(b)
	}
}
