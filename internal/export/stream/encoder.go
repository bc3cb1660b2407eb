package stream

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
)

// BufferBytes is how much an Encoder gathers before it writes. Longer data goes past the buffer.
const BufferBytes = 256 << 10

// Encoder writes a stream. Its methods are safe for concurrent use: the frames of several volumes interleave in the order
// in which they come. After an error every method returns it.
type Encoder struct {
	// turn has a value while a method has its turn. Unlike a mutex, it goes to who has waited longest, so that no volume is
	// left behind.
	turn      chan struct{}
	out       *bufio.Writer
	below     flusher
	positions []position
	head      [headBytes]byte
	frames    int64
	err       error
}

// flusher is a writer that has a buffer of its own, as that of an HTTP response has.
type flusher interface{ Flush() error }

// NewEncoder begins a stream. Nothing reaches w before the buffer is full, or Flush is called. If w has a method
// Flush() error, it is called as well.
func NewEncoder(w io.Writer, volumes []Volume) (*Encoder, error) {
	if err := checkVolumes(volumes); err != nil {
		return nil, err
	}
	e := &Encoder{turn: make(chan struct{}, 1), out: bufio.NewWriterSize(w, BufferBytes), positions: newPositions(volumes)}
	e.below, _ = w.(flusher)
	if _, err := e.out.Write(encodePreamble()); err != nil {
		return nil, err
	}
	return e, e.writeText(headerFrame, header{Volumes: volumes})
}

// WriteChunk writes a frame of a volume, by its place in the header. The chunks of a volume come in order.
func (e *Encoder) WriteChunk(volume int, c export.Chunk) error {
	e.turn <- struct{}{}
	defer func() { <-e.turn }()
	if e.err != nil {
		return e.err
	}
	if c.Data != nil && (int64(len(c.Data)) != c.Length || c.Length > export.MaxChunkBytes) {
		return e.fail(errclass.Errorf(errclass.Corrupt, "chunk %v has %d bytes", c.Extent, len(c.Data)))
	}
	if err := e.positions[volume].advance(c.Extent, c.Data == nil); err != nil {
		return e.fail(err)
	}
	h := frameHead{kind: zeroFrame, volume: uint32(volume), offset: uint64(c.Offset), length: uint64(c.Length)}
	if c.Data != nil {
		h.kind, h.checksum = dataFrame, c.Checksum
	}
	return e.fail(e.writeFrame(h, c.Data))
}

// Frames returns how many frames were written.
func (e *Encoder) Frames() int64 {
	e.turn <- struct{}{}
	defer func() { <-e.turn }()
	return e.frames
}

// Flush writes what is in the buffer.
func (e *Encoder) Flush() error {
	e.turn <- struct{}{}
	defer func() { <-e.turn }()
	if e.err != nil {
		return e.err
	}
	return e.fail(e.flush())
}

// WriteKeepalive writes a frame that says nothing, and flushes it.
func (e *Encoder) WriteKeepalive() error {
	e.turn <- struct{}{}
	defer func() { <-e.turn }()
	if e.err != nil {
		return e.err
	}
	if err := e.writeFrame(frameHead{kind: keepaliveFrame}, nil); err != nil {
		return e.fail(err)
	}
	return e.fail(e.flush())
}

// WriteError ends the stream with the reason why it is not whole. volume may be empty. It fails if the writer itself has
// failed.
func (e *Encoder) WriteError(volume string, reason error) error {
	e.turn <- struct{}{}
	defer func() { <-e.turn }()
	message := reason.Error()
	if len(message) > MaxTextBytes/8 {
		message = message[:MaxTextBytes/8]
	}
	if err := e.writeText(errorFrame, failure{Volume: volume, Reason: errclass.Reason(reason), Message: message}); err != nil {
		return err
	}
	return e.flush()
}

// Close writes the end marker. It returns an error if a full volume is not whole.
func (e *Encoder) Close() error {
	e.turn <- struct{}{}
	defer func() { <-e.turn }()
	if e.err != nil {
		return e.err
	}
	marker := end{Volumes: make([]Totals, len(e.positions))}
	for i := range e.positions {
		if err := e.positions[i].checkEnd(); err != nil {
			return e.fail(err)
		}
		marker.Volumes[i] = e.positions[i].totals
	}
	if err := e.writeText(endFrame, marker); err != nil {
		return e.fail(err)
	}
	return e.fail(e.flush())
}

func (e *Encoder) flush() error {
	if err := e.out.Flush(); err != nil || e.below == nil {
		return err
	}
	return e.below.Flush()
}

// fail keeps the first error.
func (e *Encoder) fail(err error) error {
	if e.err == nil {
		e.err = err
	}
	return err
}

// writeText writes a frame whose payload is JSON.
func (e *Encoder) writeText(kind byte, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	if len(text) > MaxTextBytes {
		return fmt.Errorf("a frame of type %c with %d bytes", kind, len(text))
	}
	return e.writeFrame(frameHead{kind: kind, length: uint64(len(text)), checksum: export.Checksum(text)}, text)
}

func (e *Encoder) writeFrame(h frameHead, payload []byte) error {
	h.encode(&e.head)
	e.frames++
	if _, err := e.out.Write(e.head[:]); err != nil {
		return err
	}
	_, err := e.out.Write(payload)
	return err
}
