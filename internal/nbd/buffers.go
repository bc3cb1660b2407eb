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

// buffers are pools of payload buffers, one for each power of two. The garbage collector frees unused ones.
type buffers struct {
	pools [bufferClasses]sync.Pool
}

// buffer has one owner at a time.
type buffer struct {
	data  []byte
	class int
}

func bufferClass(n int64) int { return max(bits.Len64(uint64(max(n, 1)-1))-minBufferBits, 0) }

// bufferBytes returns how much memory a buffer of n bytes takes.
func bufferBytes(n int64) int64 { return 1 << (bufferClass(n) + minBufferBits) }

// getBuffer returns a buffer of n bytes, at most maxBufferBytes, with undefined content.
func (p *buffers) getBuffer(n int64) *buffer {
	class := bufferClass(n)
	b, ok := p.pools[class].Get().(*buffer)
	if !ok {
		b = &buffer{data: make([]byte, 1<<(class+minBufferBits)), class: class}
	}
	b.data = b.data[:n]
	return b
}

func (p *buffers) putBuffer(b *buffer) {
	if b != nil {
		p.pools[b.class].Put(b)
	}
}
