package source

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/upload"
)

const (
	// maxLayers is how often a file may be compressed.
	maxLayers = 3
	// maxWindowBytes is how much of what was decompressed the data may refer to.
	maxWindowBytes = 256 << 20
)

// content is what is in the file after all decompression.
type content struct {
	io.Reader
	format format
	// compressed says that format is not the one of the file on the server.
	compressed bool
	closers    []func()
}

// openContent finds out the format of a stream and decompresses it.
func openContent(r io.Reader) (*content, error) {
	c := &content{}
	for layers := 0; ; layers++ {
		buffered := bufio.NewReaderSize(r, bufferBytes)
		head, err := buffered.Peek(headBytes)
		if err != nil && err != io.EOF { //nolint:errorlint // A wrapped io.EOF is an error.
			return nil, c.fail(err)
		}
		if len(head) == 0 {
			return nil, c.fail(errclass.Errorf(errclass.Invalid, "the file is empty"))
		}
		if c.format, err = detectFormat(head); err != nil {
			return nil, c.fail(err)
		}
		if r, err = c.decompress(buffered, head); err != nil {
			return nil, c.fail(err)
		}
		if r == buffered {
			c.Reader = r
			return c, nil
		}
		if layers == maxLayers {
			return nil, c.fail(errclass.Errorf(errclass.Invalid, "the file is compressed more than %d times", maxLayers))
		}
		c.compressed = true
	}
}

// decompress returns what is in compressed data that begins with head, and other data as they are.
func (c *content) decompress(r io.Reader, head []byte) (io.Reader, error) {
	switch c.format {
	case formatGzip:
		d, err := gzip.NewReader(r)
		return damageReader{d, c.format}, err
	case formatXZ:
		if err := checkXZ(head); err != nil {
			return nil, err
		}
		d, err := xz.NewReader(r)
		return damageReader{d, c.format}, err
	case formatZstd:
		d, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindowBytes),
			zstd.WithDecoderLowmem(true))
		if err == nil {
			c.closers = append(c.closers, d.Close)
		}
		return damageReader{d, c.format}, err
	case formatRaw, formatQCOW2:
	}
	return r, nil
}

// checkXZ refuses xz data whose first block needs a dictionary of more than maxWindowBytes. What a later block needs is
// bounded by the pod's memory alone.
func checkXZ(head []byte) error {
	// The .xz file format, section 3.1: after the stream's header of 12 bytes come the size of the block's header and
	// flags, the two sizes that they announce, and the filters. LZMA2 has the ID 0x21 and one byte of properties (5.3.1).
	const blockHeader, lzma2 = 12, 0x21
	if len(head) < blockHeader+2 || head[blockHeader] == 0 {
		return nil // no block
	}
	flags, rest := head[blockHeader+1], head[blockHeader+2:]
	for _, announced := range []byte{0x40, 0x80} {
		if flags&announced == 0 {
			continue
		}
		_, n := binary.Uvarint(rest)
		if n <= 0 {
			return nil // The reader says what is wrong.
		}
		rest = rest[n:]
	}
	if flags&3 != 0 || len(rest) < 3 || rest[0] != lzma2 || rest[1] != 1 {
		return nil // The reader knows no other filters.
	}
	if bits := rest[2] & 0x3f; bits > 40 || int64(2|bits&1)<<(bits/2+11) > maxWindowBytes {
		return errclass.Errorf(errclass.Invalid,
			"the xz data of the file needs more than %d MiB of memory: compress it with xz -9 or less", maxWindowBytes>>20)
	}
	return nil
}

// damageReader says in which format data is damaged.
type damageReader struct {
	io.Reader
	format format
}

// Read implements io.Reader.
func (d damageReader) Read(p []byte) (int, error) {
	n, err := d.Reader.Read(p)
	if err != nil && err != io.EOF && errclass.Of(err) == errclass.None { //nolint:errorlint // see openContent
		err = errclass.Errorf(errclass.Invalid, "the %s data of the file is damaged: %w", d.format, err)
	}
	return n, err
}

func (c *content) fail(err error) error {
	c.close()
	if errclass.Of(err) == errclass.None {
		err = errclass.Errorf(errclass.Invalid, "decompress the file: %w", err)
	}
	return err
}

func (c *content) close() {
	for _, f := range c.closers {
		f()
	}
}

// attempt writes the image once, and returns its size in bytes.
func (j *job) attempt(ctx context.Context) (bytes int64, err error) {
	s, err := j.openStream(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	bytes, err = j.writeContent(ctx, s)
	if err != nil && s.err != nil {
		err = s.err // It is what the others come from.
	}
	if err == nil && j.remote.uploads != nil {
		j.file = upload.ParseTag(s.version.etag)
	}
	return bytes, err
}

func (j *job) writeContent(ctx context.Context, s *stream) (int64, error) {
	c, err := openContent(s)
	if err != nil {
		return 0, err
	}
	defer c.close()
	j.options.Log.Info("the image is being read", "from", j.remote.String(), "format", string(c.format),
		"compressed", c.compressed, "bytes", s.version.bytes)
	switch {
	case c.format == formatRaw:
		bytes, err := j.device.writeStream(ctx, c)
		if err == nil && bytes == 0 {
			err = errclass.Errorf(errclass.Invalid, "the image is empty")
		}
		return bytes, err
	case !c.compressed && s.version.canContinue() && s.version.bytes >= 0:
		if err := s.Close(); err != nil {
			return 0, fmt.Errorf("end the request for %s: %w", j.remote, err)
		}
		return j.convertRemote(ctx, &s.version)
	default:
		return j.convertScratch(ctx, c)
	}
}
