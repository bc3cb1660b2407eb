package stream

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/extent"
)

// readBytes is the size of a Decoder's buffer. Longer data goes past it.
const readBytes = 64 << 10

// Decoder reads a stream. It believes nothing: checksums, order, bounds and totals are checked, and it takes at most
// MaxTextBytes + export.MaxChunkBytes of memory beside its buffer, whatever it reads. Errors are Transient if the stream
// was cut, Corrupt if it is damaged, Invalid if it is none, and those of an error frame as the server classed them.
// It is not safe for concurrent use.
type Decoder struct {
	in        *bufio.Reader
	volumes   []Volume
	positions []position
	head      [headBytes]byte
	data      []byte
	err       error
}

// Frame is a part of a volume.
type Frame struct {
	// Volume is the volume's place in the header.
	Volume int
	// Chunk is the content, whose checksum holds. Its Data are the caller's until the next call of Next.
	export.Chunk
}

// NewDecoder reads the header of a stream.
func NewDecoder(r io.Reader) (*Decoder, error) {
	d := &Decoder{in: bufio.NewReaderSize(r, readBytes)}
	var preamble [preambleBytes]byte
	if err := d.readFull(preamble[:]); err != nil {
		return nil, err
	}
	if err := checkPreamble(preamble[:]); err != nil {
		return nil, err
	}
	h, err := d.readHead()
	if err != nil {
		return nil, err
	}
	if h.kind != headerFrame {
		return nil, errclass.Errorf(errclass.Corrupt, "the first frame has type %q", h.kind)
	}
	var text header
	if err := d.readText(h, &text); err != nil {
		return nil, err
	}
	if err := checkVolumes(text.Volumes); err != nil {
		return nil, err
	}
	d.volumes, d.positions = text.Volumes, newPositions(text.Volumes)
	return d, nil
}

// Volumes are the volumes in the order of their places.
func (d *Decoder) Volumes() []Volume { return d.volumes }

// Positions returns for each volume the offset up to which Next has returned everything. A stream that was cut is
// continued with them as the parameters `from`.
func (d *Decoder) Positions() []int64 {
	next := make([]int64, len(d.positions))
	for i := range d.positions {
		next[i] = d.positions[i].next
	}
	return next
}

// Totals returns what Next has returned of each volume.
func (d *Decoder) Totals() []Totals {
	totals := make([]Totals, len(d.positions))
	for i := range d.positions {
		totals[i] = d.positions[i].totals
	}
	return totals
}

// Next returns the next frame with content. It returns io.EOF after the end marker, if the totals hold and nothing
// follows. After an error it returns the same one.
func (d *Decoder) Next() (Frame, error) {
	if d.err != nil {
		return Frame{}, d.err
	}
	var f Frame
	f, d.err = d.readFrame()
	return f, d.err
}

func (d *Decoder) readFrame() (Frame, error) {
	for {
		h, err := d.readHead()
		if err != nil {
			return Frame{}, err
		}
		switch h.kind {
		case dataFrame, zeroFrame:
			return d.readContent(h)
		case keepaliveFrame:
			if h.length != 0 || h.checksum != 0 {
				return Frame{}, errclass.Errorf(errclass.Corrupt, "a keepalive with %d bytes", h.length)
			}
		case errorFrame:
			return Frame{}, d.readFailure(h)
		case endFrame:
			return Frame{}, d.readEnd(h)
		default:
			return Frame{}, errclass.Errorf(errclass.Corrupt, "a frame of type %q", h.kind)
		}
	}
}

func (d *Decoder) readContent(h frameHead) (Frame, error) {
	if uint64(h.volume) >= uint64(len(d.positions)) || h.offset > math.MaxInt64 || h.length > math.MaxInt64 {
		return Frame{}, errclass.Errorf(errclass.Corrupt, "a frame of volume %d of %d at %d with %d bytes", h.volume, len(d.positions), h.offset, h.length)
	}
	f := Frame{Volume: int(h.volume), Chunk: export.Chunk{Extent: extent.Extent{Offset: int64(h.offset), Length: int64(h.length)}, Checksum: h.checksum}}
	p := d.positions[f.Volume] // advanced once the data are there
	if err := p.advance(f.Extent, h.kind == zeroFrame); err != nil {
		return Frame{}, err
	}
	if h.kind == dataFrame {
		if err := d.readData(&f); err != nil {
			return Frame{}, err
		}
	} else if h.checksum != 0 {
		return Frame{}, errclass.Errorf(errclass.Corrupt, "zeroes with checksum %08x", h.checksum)
	}
	d.positions[f.Volume] = p
	return f, nil
}

func (d *Decoder) readData(f *Frame) error {
	if f.Length > export.MaxChunkBytes {
		return errclass.Errorf(errclass.Corrupt, "a frame with %d bytes of data", f.Length)
	}
	if int64(len(d.data)) < f.Length {
		d.data = make([]byte, f.Length)
	}
	f.Data = d.data[:f.Length]
	if err := d.readFull(f.Data); err != nil {
		return err
	}
	if sum := export.Checksum(f.Data); sum != f.Checksum {
		return errclass.Errorf(errclass.Corrupt, "%v of volume %s has checksum %08x, not %08x", f.Extent, d.volumes[f.Volume].Name, sum, f.Checksum)
	}
	return nil
}

func (d *Decoder) readFailure(h frameHead) error {
	var text failure
	if err := d.readText(h, &text); err != nil {
		return err
	}
	where := "the server"
	if text.Volume != "" {
		where = "volume " + text.Volume
	}
	for _, class := range errclass.All {
		if errclass.Reason(class) == text.Reason {
			return errclass.Errorf(class, "%s: %s", where, text.Message)
		}
	}
	return fmt.Errorf("%s: %s", where, text.Message)
}

// readEnd checks the totals, and that nothing follows.
func (d *Decoder) readEnd(h frameHead) error {
	var text end
	if err := d.readText(h, &text); err != nil {
		return err
	}
	if len(text.Volumes) != len(d.positions) {
		return errclass.Errorf(errclass.Corrupt, "totals of %d volumes, not %d", len(text.Volumes), len(d.positions))
	}
	for i := range d.positions {
		if got := d.positions[i].totals; got != text.Volumes[i] {
			return errclass.Errorf(errclass.Corrupt, "volume %s came with %+v, and the server sent %+v", d.volumes[i].Name, got, text.Volumes[i])
		}
		if err := d.positions[i].checkEnd(); err != nil {
			return err
		}
	}
	switch _, err := d.in.ReadByte(); {
	case err == nil:
		return errclass.Errorf(errclass.Corrupt, "the stream goes on after its end")
	case !errors.Is(err, io.EOF):
		return errclass.Errorf(errclass.Transient, "read the stream: %w", err)
	}
	return io.EOF
}

func (d *Decoder) readHead() (h frameHead, err error) {
	if err := d.readFull(d.head[:]); err != nil {
		return h, err
	}
	return h, h.decode(&d.head)
}

// readText reads the JSON of a frame. Fields that it does not know are left to later versions.
func (d *Decoder) readText(h frameHead, into any) error {
	if h.length > MaxTextBytes {
		return errclass.Errorf(errclass.Corrupt, "a frame of type %c with %d bytes", h.kind, h.length)
	}
	text := make([]byte, h.length)
	if err := d.readFull(text); err != nil {
		return err
	}
	if sum := export.Checksum(text); sum != h.checksum {
		return errclass.Errorf(errclass.Corrupt, "a frame of type %c has checksum %08x, not %08x", h.kind, sum, h.checksum)
	}
	if err := json.Unmarshal(text, into); err != nil {
		return errclass.Errorf(errclass.Corrupt, "a frame of type %c: %w", h.kind, err)
	}
	return nil
}

func (d *Decoder) readFull(b []byte) error {
	_, err := io.ReadFull(d.in, b)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, io.EOF):
		err = io.ErrUnexpectedEOF
	}
	return errclass.Errorf(errclass.Transient, "the stream was cut: %w", err)
}
