package engine

import (
	"encoding/binary"
	"hash/crc32"
	"sync"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/kopia/kopia/repo/compression"
)

// headerBytes is the length of a compressed content's header, which repeats how the content is compressed.
const headerBytes = 4

// decompress appends to out what data, a content that kopia compressed, was before. out is empty, and decompress stays within its
// capacity. It knows S2 and zstd as kopia writes them. ok is false for everything else, and for data that is wrong.
func decompress(id compression.HeaderID, data, out []byte) (plain []byte, ok bool) {
	if len(data) < headerBytes || binary.BigEndian.Uint32(data) != uint32(id) {
		return nil, false
	}
	data = data[headerBytes:]
	switch compression.HeaderIDToName[id] {
	case "s2-default", "s2-better", "s2-parallel-4", "s2-parallel-8":
		return decodeS2(data, out)
	case "zstd", "zstd-fastest", "zstd-better-compression", "zstd-best-compression":
		d, err := zstdDecoder()
		if err != nil {
			return nil, false
		}
		plain, err = d.DecodeAll(data, out)
		return plain, err == nil
	}
	return nil, false
}

// zstdDecoder returns a decoder that several goroutines may use at once, and that does not write beyond its output's capacity.
var zstdDecoder = sync.OnceValues(func() (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecodeAllCapLimit(true))
})

// An S2 stream consists of chunks: a type, 24 bits of length and, for data, a checksum first (Snappy's framing format with S2's
// name).
const (
	s2Stream       = "\xff\x06\x00\x00S2sTwO"
	s2Compressed   = 0x00
	s2Uncompressed = 0x01
	s2ChunkHeader  = 4
	s2Checksum     = 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// decodeS2 appends what a stream decodes to. s2.Reader would copy everything once more on the way in and out.
func decodeS2(stream, out []byte) (plain []byte, ok bool) {
	if len(stream) < len(s2Stream) || string(stream[:len(s2Stream)]) != s2Stream {
		return nil, false
	}
	for stream = stream[len(s2Stream):]; len(stream) > 0; {
		if len(stream) < s2ChunkHeader+s2Checksum {
			return nil, false
		}
		kind, length := stream[0], int(stream[1])|int(stream[2])<<8|int(stream[3])<<16
		if length < s2Checksum || length > len(stream)-s2ChunkHeader {
			return nil, false
		}
		sum, data := binary.LittleEndian.Uint32(stream[s2ChunkHeader:]), stream[s2ChunkHeader+s2Checksum:s2ChunkHeader+length]
		stream = stream[s2ChunkHeader+length:]
		room := out[len(out):cap(out)]
		switch kind {
		case s2Compressed:
			n, err := s2.DecodedLen(data)
			if err != nil || n > len(room) {
				return nil, false
			}
			if _, err := s2.Decode(room[:n:n], data); err != nil {
				return nil, false
			}
			room = room[:n]
		case s2Uncompressed:
			if len(data) > len(room) {
				return nil, false
			}
			room = room[:copy(room, data)]
		default:
			return nil, false
		}
		if c := crc32.Checksum(room, castagnoli); c>>15|c<<17+0xa282ead8 != sum {
			return nil, false
		}
		out = out[:len(out)+len(room)]
	}
	return out, true
}
