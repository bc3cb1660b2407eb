package source

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/handover"
)

// header returns a header of version 3 for a disk of a MiB.
func header(change func([]byte)) []byte {
	b := make([]byte, 64<<10)
	copy(b, qcow2Magic)
	binary.BigEndian.PutUint32(b[4:], 3)
	binary.BigEndian.PutUint32(b[20:], 16)
	binary.BigEndian.PutUint64(b[24:], 1<<20)
	binary.BigEndian.PutUint32(b[100:], 104)
	if change != nil {
		change(b)
	}
	return b
}

func TestCheckQCOW2(t *testing.T) {
	t.Parallel()
	put32 := func(at int, value uint32) func([]byte) {
		return func(b []byte) { binary.BigEndian.PutUint32(b[at:], value) }
	}
	put64 := func(at int, value uint64) func([]byte) {
		return func(b []byte) { binary.BigEndian.PutUint64(b[at:], value) }
	}
	extension := func(kind, length uint32) func([]byte) {
		return func(b []byte) {
			binary.BigEndian.PutUint32(b[104:], 0x6803f857) // names of features
			binary.BigEndian.PutUint32(b[108:], 5)
			binary.BigEndian.PutUint32(b[120:], kind)
			binary.BigEndian.PutUint32(b[124:], length)
		}
	}
	for name, c := range map[string]struct {
		head  []byte
		words string // "": accepted
	}{
		"plain":              {header(nil), ""},
		"version 2":          {header(put32(4, 2)), ""},
		"largest":            {header(put64(24, handover.MaxImageBytes)), ""},
		"compression type":   {header(put64(72, 1<<3)), ""},
		"unknown extension":  {header(extension(0x12345678, 8)), ""},
		"short":              {header(nil)[:50], "not whole"},
		"short version 3":    {header(nil)[:90], "version"},
		"version 4":          {header(put32(4, 4)), "version"},
		"tiny clusters":      {header(put32(20, 8)), "clusters"},
		"huge clusters":      {header(put32(20, 22)), "clusters"},
		"backing file":       {header(put64(8, 200)), "backing file"},
		"backing name":       {header(put32(16, 11)), "backing file"},
		"encrypted":          {header(put32(32, 1)), "encrypted"},
		"LUKS":               {header(extension(qcow2ExtensionCrypto, 16)), "encrypted"},
		"data file":          {header(put64(72, qcow2DataFile)), "another file"},
		"name of data file":  {header(extension(qcow2ExtensionData, 11)), "another file"},
		"corrupt":            {header(put64(72, qcow2Corrupt)), "corrupt"},
		"unknown feature":    {header(put64(72, 1<<40)), "features"},
		"long header":        {header(put32(100, 1<<31)), "first cluster"},
		"short header":       {header(put32(100, 8)), "first cluster"},
		"endless extension":  {header(extension(7, 1<<31)), "first cluster"},
		"empty":              {header(put64(24, 0)), "empty"},
		"part of a sector":   {header(put64(24, 1000)), "multiple of 512"},
		"too large":          {header(put64(24, handover.MaxImageBytes+512)), "more than"},
		"larger than signed": {header(put64(24, 1<<63)), "more than"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			disk, err := checkQCOW2(c.head)
			switch {
			case c.words == "" && (err != nil || disk.bytes != int64(binary.BigEndian.Uint64(c.head[24:]))):
				t.Errorf("disk %+v, %v", disk, err)
			case c.words != "" && (!errors.Is(err, errclass.Invalid) || !strings.Contains(err.Error(), c.words)):
				t.Errorf("error %v: it does not say %q", err, c.words)
			}
		})
	}
}

// ram is a file in memory.
type ram []byte

func (r ram) Size() int64 { return int64(len(r)) }

func (r ram) ReadAt(_ context.Context, p []byte, offset int64) error {
	copy(p, r[offset:])
	return nil
}

// A server may send another header when it is asked again, and less than there has to be.
func TestQCOW2File(t *testing.T) {
	t.Parallel()
	now := ram(bytes.Repeat([]byte{2}, 1000))
	f := &qcow2File{image: now, head: bytes.Repeat([]byte{1}, 512), clusterBytes: 512}
	got := make([]byte, 1024)
	if err := f.ReadAt(t.Context(), got, 0); err != nil {
		t.Fatal(err)
	}
	want := slices.Concat(bytes.Repeat([]byte{1}, 512), bytes.Repeat([]byte{2}, 488), make([]byte, 24))
	if !bytes.Equal(got, want) {
		t.Errorf("read %v", got)
	}
	if err := f.ReadAt(t.Context(), got[:24], 1000); err != nil || !bytes.Equal(got[:24], make([]byte, 24)) {
		t.Errorf("behind the end: %v, %v", got[:24], err)
	}
	for offset, n := range map[int64]int{1000: 25, 1024: 1, 1 << 56: 512} {
		if err := f.ReadAt(t.Context(), got[:n], offset); !errors.Is(err, errclass.Invalid) {
			t.Errorf("%d bytes at %d: %v", n, offset, err)
		}
	}
	if !errors.Is(f.cause(), errclass.Invalid) {
		t.Errorf("cause %v", f.cause())
	}
}

// A bomb is not written to its end.
func TestWriteStream_refusesTooMuch(t *testing.T) {
	t.Parallel()
	f, err := os.Create(filepath.Join(t.TempDir(), "device"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	for bytes, want := range map[int64]error{3 << 20: nil, 3<<20 + 1: errTooLarge, 1 << 62: errTooLarge} {
		d := &device{f, 3 << 20}
		_, err := d.writeStream(t.Context(), io.LimitReader(zeroReader{}, bytes))
		if !errors.Is(err, want) {
			t.Errorf("%d bytes: %v, want %v", bytes, err, want)
		}
	}
}

// zeroReader is an endless stream of zeroes.
type zeroReader struct{}

// Read implements io.Reader.
func (zeroReader) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func TestCheckXZ(t *testing.T) {
	t.Parallel()
	const start = "\xfd7zXZ\x00\x00\x04\xe6\xd6\xb4\x46"
	for name, c := range map[string]struct {
		head   string
		refuse bool
	}{
		"empty":                    {start + "\x00\x00", false},
		"short":                    {start, false},
		"64 MiB":                   {start + "\x02\x00\x21\x01\x1c", false},
		"256 MiB":                  {start + "\x02\x00\x21\x01\x20", false},
		"384 MiB":                  {start + "\x02\x00\x21\x01\x21", true},
		"4 GiB":                    {start + "\x02\x00\x21\x01\x28", true},
		"more than there is":       {start + "\x02\x00\x21\x01\x3f", true},
		"384 MiB after both sizes": {start + "\x04\xc0\x80\x80\x01\x05\x21\x01\x21", true},
		"unfinished size":          {start + "\x04\xc0\x80", false},
	} {
		if err := checkXZ([]byte(c.head)); errors.Is(err, errclass.Invalid) != c.refuse {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzCheckQCOW2(f *testing.F) {
	f.Add(header(nil))
	f.Fuzz(func(t *testing.T, head []byte) {
		disk, err := checkQCOW2(head)
		if err == nil && (disk.bytes <= 0 || disk.bytes > handover.MaxImageBytes) {
			t.Errorf("disk %+v", disk)
		}
	})
}
