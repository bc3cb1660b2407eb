// Package stream is the framed form in which the export server sends several volumes in one response: exactly the
// regions that their maps name, with a checksum for each frame and totals at the end. docs/api.md has the layout.
//
// A stream that ends without its end marker was cut. What was read until then is good, and Decoder.Positions says where
// another stream goes on.
package stream

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/varvebackup/varve/internal/errclass"
)

const (
	// ContentType is the media type of a stream.
	ContentType = "application/vnd.varve.export-stream"
	// Version is the version of the format.
	Version = 1
	// MaxVolumes is how many volumes a stream has at most.
	MaxVolumes = 1024
	// MaxTextBytes is the length of the longest header, error or end marker.
	MaxTextBytes = 1 << 20

	magic         = "VARVESTR"
	preambleBytes = 16
	headBytes     = 32
)

// The types of frames.
const (
	headerFrame    = 'H'
	dataFrame      = 'D'
	zeroFrame      = 'Z'
	keepaliveFrame = 'K'
	errorFrame     = 'E'
	endFrame       = 'T'
)

// Volume describes a volume in the header of a stream.
type Volume struct {
	Name string `json:"name"`
	// Bytes is the size of the disk.
	Bytes int64 `json:"size"`
	// Incremental says that the stream has only what changed since the base. Every gap between frames is unchanged.
	Incremental bool `json:"incremental"`
	// PointInTime is that of export.Info.
	PointInTime string `json:"point_in_time"`
	// From is the offset at which the stream begins: what is before it is not sent.
	From int64 `json:"from"`
}

// Totals are what a stream has of a volume.
type Totals struct {
	DataBytes int64 `json:"data_bytes"`
	ZeroBytes int64 `json:"zero_bytes"`
	Frames    int64 `json:"frames"`
}

// header and end are the JSON texts of the frames of these types, and failure that of an error frame.
type (
	header struct {
		Volumes []Volume `json:"volumes"`
	}
	end struct {
		Volumes []Totals `json:"volumes"`
	}
	failure struct {
		Volume  string `json:"volume,omitempty"`
		Reason  string `json:"reason"`
		Message string `json:"message"`
	}
)

// frameHead is the fixed part of a frame.
type frameHead struct {
	kind   byte
	volume uint32
	// offset and length are those of the extent. The length of a text is its own.
	offset, length uint64
	// checksum is that of the payload; 0 without one.
	checksum uint32
}

func (h *frameHead) encode(b *[headBytes]byte) {
	b[0], b[1], b[2], b[3] = h.kind, 0, 0, 0
	binary.BigEndian.PutUint32(b[4:], h.volume)
	binary.BigEndian.PutUint64(b[8:], h.offset)
	binary.BigEndian.PutUint64(b[16:], h.length)
	binary.BigEndian.PutUint32(b[24:], h.checksum)
	binary.BigEndian.PutUint32(b[28:], crc32.ChecksumIEEE(b[:28]))
}

func (h *frameHead) decode(b *[headBytes]byte) error {
	if sum := crc32.ChecksumIEEE(b[:28]); sum != binary.BigEndian.Uint32(b[28:]) {
		return errclass.Errorf(errclass.Corrupt, "the head of a frame has checksum %08x, not %08x", sum, binary.BigEndian.Uint32(b[28:]))
	}
	if b[1]|b[2]|b[3] != 0 {
		return errclass.Errorf(errclass.Corrupt, "the head of a frame has reserved bytes %x", b[1:4])
	}
	*h = frameHead{
		kind: b[0], volume: binary.BigEndian.Uint32(b[4:]), offset: binary.BigEndian.Uint64(b[8:]),
		length: binary.BigEndian.Uint64(b[16:]), checksum: binary.BigEndian.Uint32(b[24:]),
	}
	return nil
}

func encodePreamble() []byte {
	b := append(make([]byte, 0, preambleBytes), magic...)
	b = binary.BigEndian.AppendUint32(b, Version)
	return binary.BigEndian.AppendUint32(b, 0)
}

func checkPreamble(b []byte) error {
	if string(b[:len(magic)]) != magic {
		return errclass.Errorf(errclass.Invalid, "this is no stream of volumes: it begins with %x", b[:len(magic)])
	}
	if version := binary.BigEndian.Uint32(b[8:]); version != Version {
		return errclass.Errorf(errclass.Invalid, "the stream has version %d; this program reads version %d", version, Version)
	}
	if reserved := binary.BigEndian.Uint32(b[12:]); reserved != 0 {
		return errclass.Errorf(errclass.Corrupt, "the stream begins with reserved bytes %08x", reserved)
	}
	return nil
}

// checkVolumes checks a header: those that are sent as well as those that are received.
func checkVolumes(volumes []Volume) error {
	if len(volumes) > MaxVolumes {
		return errclass.Errorf(errclass.Invalid, "a stream has at most %d volumes, not %d", MaxVolumes, len(volumes))
	}
	names := make(map[string]bool, len(volumes))
	for _, v := range volumes {
		switch {
		case v.Name == "" || names[v.Name]:
			return errclass.Errorf(errclass.Invalid, "the stream has two volumes %q, or one without a name", v.Name)
		case v.Bytes < 0 || v.From < 0 || v.From > v.Bytes:
			return errclass.Errorf(errclass.Invalid, "volume %s has %d bytes and begins at %d", v.Name, v.Bytes, v.From)
		}
		names[v.Name] = true
	}
	return nil
}
