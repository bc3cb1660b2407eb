package tunnel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/extent"
)

// ErrProtocol means that the peer broke the protocol, and that the connection to it has ended.
var ErrProtocol = errors.New("tunnel: protocol violation")

func protocolError(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrProtocol, fmt.Sprintf(format, args...))
}

// The limits of the wire. They belong to the version.
const (
	headerBytes = 12
	// maxPieceBytes is the most data in a frame. A longer chunk is sent in pieces.
	maxPieceBytes = 128 << 10
	// maxPageRegions is how many regions a page has at most.
	maxPageRegions = 4096
	maxOfferBytes  = 128 << 10
	maxVolumes     = 256
	// maxMessageBytes is how much text the end of a request carries.
	maxMessageBytes = 512
	// maxCreditBytes is how much a request may be ahead of its reader at most.
	maxCreditBytes = 1 << 30
)

// frameKind is the first byte of a frame.
type frameKind uint8

const (
	frameOffer   frameKind = iota + 1 // launcher: its limits and volumes; once, first of all
	framePing                         // both: nothing
	frameRead                         // far end: send the content of an extent
	frameRegions                      // far end: send a page of the regions of an extent
	frameCredit                       // far end: send more of the content
	frameCancel                       // far end: end the request
	frameData                         // launcher: the bytes of a piece
	frameZero                         // launcher: an extent of zeroes
	framePage                         // launcher: regions; ends the request
	frameEnd                          // launcher: the request has ended
)

// frameShape says what a frame of a kind may look like.
type frameShape struct {
	name string
	// fixed is the length of the fields after the header.
	fixed uint32
	// least and most are the limits of what follows the fields, and unit divides its length.
	least, most, unit uint32
	// launcher says that the launcher sends it, and reader that the far end does.
	launcher, reader bool
	// request says that it is about a request, and has a stream.
	request bool
}

var frameShapes = [...]frameShape{
	frameOffer:   {name: "offer", fixed: 4, most: maxOfferBytes, unit: 1, launcher: true},
	framePing:    {name: "ping", unit: 1, launcher: true, reader: true},
	frameRead:    {name: "read", fixed: 24, unit: 1, reader: true, request: true},
	frameRegions: {name: "regions", fixed: 24, unit: 1, reader: true, request: true},
	frameCredit:  {name: "credit", fixed: 4, unit: 1, reader: true, request: true},
	frameCancel:  {name: "cancel", unit: 1, reader: true, request: true},
	frameData:    {name: "data", fixed: 12, least: 1, most: maxPieceBytes, unit: 1, launcher: true, request: true},
	frameZero:    {name: "zero", fixed: 16, unit: 1, launcher: true, request: true},
	framePage:    {name: "page", least: regionBytes, most: maxPageRegions * regionBytes, unit: regionBytes, launcher: true, request: true},
	frameEnd:     {name: "end", fixed: 1, most: maxMessageBytes, unit: 1, launcher: true, request: true},
}

// maxFixedBytes is the longest header with its fields.
const maxFixedBytes = headerBytes + 24

// frame is the header and the fields of a frame. A field counts only for the kinds that have it.
type frame struct {
	kind   frameKind
	stream uint32
	// tail is the length in bytes of what follows the fields.
	tail uint32

	volume   uint16        // read, regions: place in the offer
	scope    export.Scope  // read
	count    uint32        // offer: requests; read, credit: bytes; regions: regions
	extent   extent.Extent // read, regions, zero; data: the offset only
	checksum uint32        // data
	class    uint8         // end
}

// appendTo adds the header and the fields.
func (f frame) appendTo(b []byte) []byte {
	b = append(b, byte(f.kind), 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, f.stream)
	b = binary.BigEndian.AppendUint32(b, frameShapes[f.kind].fixed+f.tail)
	switch f.kind {
	case frameOffer, frameCredit:
		b = binary.BigEndian.AppendUint32(b, f.count)
	case frameRead, frameRegions:
		b = binary.BigEndian.AppendUint16(b, f.volume)
		b = append(b, byte(f.scope), 0)
		b = binary.BigEndian.AppendUint32(b, f.count)
		b = appendExtent(b, f.extent)
	case frameData:
		b = binary.BigEndian.AppendUint64(b, uint64(f.extent.Offset))
		b = binary.BigEndian.AppendUint32(b, f.checksum)
	case frameZero:
		b = appendExtent(b, f.extent)
	case frameEnd:
		b = append(b, f.class)
	case framePing, frameCancel, framePage:
	}
	return b
}

func appendExtent(b []byte, e extent.Extent) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, uint64(e.Offset)), uint64(e.Length))
}

// parseHeader reads the header of a frame from the launcher or from the far end.
func parseHeader(b []byte, launcher bool) (frame, error) {
	f := frame{kind: frameKind(b[0]), stream: binary.BigEndian.Uint32(b[4:])}
	if int(f.kind) >= len(frameShapes) || f.kind == 0 {
		return f, protocolError("frame of unknown kind %d", f.kind)
	}
	shape := &frameShapes[f.kind]
	if launcher && !shape.launcher || !launcher && !shape.reader {
		return f, protocolError("%s frame in the wrong direction", shape.name)
	}
	if b[1]|b[2]|b[3] != 0 {
		return f, protocolError("reserved bytes %x in a %s frame", b[1:4], shape.name)
	}
	if shape.request != (f.stream != 0) {
		return f, protocolError("%s frame with stream %d", shape.name, f.stream)
	}
	length := binary.BigEndian.Uint32(b[8:])
	if length < shape.fixed+shape.least || length > shape.fixed+shape.most || (length-shape.fixed)%shape.unit != 0 {
		return f, protocolError("%s frame of %d bytes", shape.name, length)
	}
	f.tail = length - shape.fixed
	return f, nil
}

// parseFields reads the fields of a frame whose header was read.
func (f *frame) parseFields(b []byte) error {
	switch f.kind {
	case frameOffer, frameCredit:
		f.count = binary.BigEndian.Uint32(b)
	case frameRead, frameRegions:
		f.volume, f.scope, f.count = binary.BigEndian.Uint16(b), export.Scope(b[2]), binary.BigEndian.Uint32(b[4:])
		if b[3] != 0 || f.scope > export.Changed || f.kind == frameRegions && f.scope != 0 {
			return protocolError("scope %x", b[2:4])
		}
		return f.parseExtent(b[8:])
	case frameData:
		f.checksum = binary.BigEndian.Uint32(b[8:])
		offset := binary.BigEndian.Uint64(b)
		if offset > math.MaxInt64-maxPieceBytes {
			return protocolError("data at %d", offset)
		}
		f.extent = extent.Extent{Offset: int64(offset), Length: int64(f.tail)}
	case frameZero:
		return f.parseExtent(b)
	case frameEnd:
		f.class = b[0]
	case framePing, frameCancel, framePage:
	}
	return nil
}

func (f *frame) parseExtent(b []byte) error {
	f.extent = extent.Extent{Offset: int64(binary.BigEndian.Uint64(b)), Length: int64(binary.BigEndian.Uint64(b[8:]))}
	if !f.extent.Valid() || f.extent.Empty() {
		return protocolError("%s frame about %v", frameShapes[f.kind].name, f.extent)
	}
	return nil
}

// frameReader reads frames of one peer. One goroutine uses it.
type frameReader struct {
	from io.Reader
	// launcher says who the peer is.
	launcher bool
	scratch  [maxFixedBytes]byte
}

// readFrame reads the header and the fields of the next frame. The caller reads the tail.
func (r *frameReader) readFrame() (frame, error) {
	b := r.scratch[:headerBytes]
	if _, err := io.ReadFull(r.from, b); err != nil {
		return frame{}, err
	}
	f, err := parseHeader(b, r.launcher)
	if err != nil {
		return f, err
	}
	if b = r.scratch[:frameShapes[f.kind].fixed]; len(b) == 0 {
		return f, nil
	}
	if err := r.readTail(b); err != nil {
		return f, err
	}
	return f, f.parseFields(b)
}

// readTail fills b. The end of the connection here is one within a frame.
func (r *frameReader) readTail(b []byte) error {
	if _, err := io.ReadFull(r.from, b); errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	} else if err != nil {
		return err
	}
	return nil
}
