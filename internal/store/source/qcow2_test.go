package source

import (
	"encoding/binary"
	"errors"
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
			size, err := checkQCOW2(c.head)
			switch {
			case c.words == "" && (err != nil || size != int64(binary.BigEndian.Uint64(c.head[24:]))):
				t.Errorf("size %d, %v", size, err)
			case c.words != "" && (!errors.Is(err, errclass.Invalid) || !strings.Contains(err.Error(), c.words)):
				t.Errorf("error %v: it does not say %q", err, c.words)
			}
		})
	}
}

func FuzzCheckQCOW2(f *testing.F) {
	f.Add(header(nil))
	f.Fuzz(func(t *testing.T, head []byte) {
		size, err := checkQCOW2(head)
		if err == nil && (size <= 0 || size > handover.MaxImageBytes) {
			t.Errorf("size %d", size)
		}
	})
}
