package disk

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/nbd"
	"github.com/varvebackup/varve/test/verdict"
)

// comparedPlace is a target that has something already.
type comparedPlace struct {
	name string
	size int64
	// unit is the block that is compared, in which the target must be written.
	unit int64
	// make returns the target's spec, how to open it, and what its content is then.
	make func(t *testing.T, has []byte) (spec string, o TargetOptions, content func() []byte)
}

func fileWith(t *testing.T, has []byte) (string, func() []byte) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk.img")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	err = f.Truncate(int64(len(has)))
	for at := 0; at < len(has); at += CompareBytes {
		block := has[at:min(at+CompareBytes, len(has))]
		if isZero(block) && at/CompareBytes%2 == 0 {
			continue // a hole, and every other one allocated
		}
		_, werr := f.WriteAt(block, int64(at))
		err = errors.Join(err, werr)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	return path, func() []byte {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
}

const comparedBytes = 600*kib + 512

var comparedPlaces = []comparedPlace{
	{"file", comparedBytes + 7, CompareBytes, func(t *testing.T, has []byte) (string, TargetOptions, func() []byte) {
		t.Helper()
		path, content := fileWith(t, has)
		return path, TargetOptions{Overwrite: true}, content
	}},
	{"file that is smaller", comparedBytes, CompareBytes, func(t *testing.T, has []byte) (string, TargetOptions, func() []byte) {
		t.Helper()
		clear(has[300*kib+5:])
		path, content := fileWith(t, has[:300*kib+5])
		return path, TargetOptions{Overwrite: true}, content
	}},
	{"file that is larger", comparedBytes, CompareBytes, func(t *testing.T, has []byte) (string, TargetOptions, func() []byte) {
		t.Helper()
		path, content := fileWith(t, append(bytes.Clone(has), noise(50*kib, 9)...))
		return path, TargetOptions{Overwrite: true}, content
	}},
	{"file that stays larger", comparedBytes, CompareBytes, func(t *testing.T, has []byte) (string, TargetOptions, func() []byte) {
		t.Helper()
		rest := noise(50*kib, 9)
		path, content := fileWith(t, append(bytes.Clone(has), rest...))
		return path, TargetOptions{Overwrite: true, Larger: true}, func() []byte {
			got := content()
			if !bytes.Equal(got[comparedBytes:], rest) {
				verdict.Errorf(t, "what lies behind the disk changed")
			}
			return got[:comparedBytes]
		}
	}},
	{"export", comparedBytes, CompareBytes, func(t *testing.T, has []byte) (string, TargetOptions, func() []byte) {
		t.Helper()
		d := &ram{data: bytes.Clone(has)}
		uri := serveNBD(t, nbd.Export{Backend: d, Block: nbd.BlockSizes{Minimum: 512}, MultiConn: true})
		return uri, TargetOptions{Overwrite: true}, func() []byte { return d.data }
	}},
	{"export that is larger, with large blocks", comparedBytes, 64 * kib, func(t *testing.T, has []byte) (string, TargetOptions, func() []byte) {
		t.Helper()
		d := &ram{data: append(bytes.Clone(has), make([]byte, mib-len(has))...)}
		uri := serveNBD(t, nbd.Export{Backend: d, Block: nbd.BlockSizes{Minimum: 64 * kib}})
		return uri, TargetOptions{Overwrite: true, Larger: true}, func() []byte { return d.data[:comparedBytes] }
	}},
	{"export that knows nothing", comparedBytes, CompareBytes, func(t *testing.T, has []byte) (string, TargetOptions, func() []byte) {
		t.Helper()
		d := &ram{data: bytes.Clone(has)}
		uri := serveNBD(t, nbd.Export{Backend: plainRAM{d}})
		return uri, TargetOptions{Overwrite: true}, func() []byte { return d.data }
	}},
}

// TestComparison_writesWhatDiffers has any content become any other one. What is written is what differs.
func TestComparison_writesWhatDiffers(t *testing.T) {
	t.Parallel()
	for _, p := range comparedPlaces {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(r *rapid.T) {
				want := drawContent(r, "disk", make([]byte, p.size))
				has := drawContent(r, "change", bytes.Clone(want))
				spec, o, content := p.make(t, has)
				o.Compare = &Comparison{}
				target, err := OpenTarget(t.Context(), spec, p.size, o)
				if err != nil {
					r.Fatal(err)
				}
				err = writeAligned(t, r, target, want, p.unit)
				if err := errors.Join(err, target.Sync(t.Context()), target.Close()); err != nil {
					r.Fatal(err)
				}
				if !bytes.Equal(content(), want) {
					verdict.Fatalf(t, "other bytes")
				}
				if differs := differingBytes(has, want, p.unit); o.Compare.WrittenBytes() != differs {
					r.Errorf("%d bytes were written, %d differed", o.Compare.WrittenBytes(), differs)
				}
			})
		})
	}
}

// drawContent changes some blocks of content to zeroes or noise, and single bytes.
func drawContent(r *rapid.T, what string, content []byte) []byte {
	size := len(content)
	for i := range rapid.IntRange(0, 12).Draw(r, what) {
		at := rapid.IntRange(0, size-1).Draw(r, "at")
		switch part := content[at:min(size, at+rapid.IntRange(1, 90*kib).Draw(r, "length"))]; rapid.IntRange(0, 2).Draw(r, "how") {
		case 0:
			clear(part)
		case 1:
			copy(part, noise(len(part), uint64(i+size)))
		case 2:
			part[0] ^= 1
		}
	}
	return content
}

// writeAligned writes all of want in pieces of any number of units, in any order of two. Pieces of zeroes are zeroed.
func writeAligned(t *testing.T, r *rapid.T, target Target, want []byte, unit int64) error {
	t.Helper()
	var pieces []extent.Extent
	for at := int64(0); at < int64(len(want)); {
		end := min(at+rapid.Int64Range(1, 90).Draw(r, "units")*unit, int64(len(want)))
		pieces = append(pieces, extent.Extent{Offset: at, Length: end - at})
		at = end
	}
	var all error
	for i := range pieces {
		e := pieces[i]
		if rapid.Bool().Draw(r, "zero") && isZero(want[e.Offset:e.End()]) {
			all = errors.Join(all, target.Zero(t.Context(), e))
		} else {
			all = errors.Join(all, target.WriteAt(t.Context(), want[e.Offset:e.End():e.End()], e.Offset))
		}
	}
	return all
}

// differingBytes returns how long the blocks are together in which two disks differ.
func differingBytes(a, b []byte, unit int64) int64 {
	var sum int64
	for at := 0; at < len(a); at += int(unit) {
		if end := min(at+int(unit), len(a)); !bytes.Equal(a[at:end], b[at:end]) {
			sum += int64(end - at)
		}
	}
	return sum
}

// The same bytes are not even written to the file: its time of modification stays.
func TestComparison_leavesAnEqualFileAlone(t *testing.T) {
	t.Parallel()
	want := append(noise(700*kib, 1), make([]byte, 300*kib)...)
	path, _ := fileWith(t, want)
	target, err := OpenTarget(t.Context(), path, int64(len(want)), TargetOptions{Overwrite: true, Compare: &Comparison{}})
	if err != nil {
		t.Fatal(err)
	}
	var before, after unix.Stat_t
	err = unix.Stat(path, &before)
	zeroes := extent.Extent{Offset: 800 * kib, Length: 200 * kib}
	err = errors.Join(err, target.WriteAt(t.Context(), want[:800*kib], 0), target.Zero(t.Context(), zeroes))
	if err := errors.Join(err, target.Close(), unix.Stat(path, &after)); err != nil {
		t.Fatal(err)
	}
	if before.Mtim != after.Mtim || before.Blocks != after.Blocks {
		t.Errorf("the file was written: %+v, then %+v", before, after)
	}
}

// A comparison does not need the rest of a file that a smaller disk takes the place of, and refuses what it cannot do.
func TestComparison_refused(t *testing.T) {
	t.Parallel()
	path, _ := fileWith(t, noise(mib, 1))
	for text, o := range map[string]TargetOptions{
		"overwrite this one":       {Compare: &Comparison{}},
		"there is nothing to comp": {Compare: &Comparison{}, Overwrite: true, Format: QCOW2},
	} {
		target, err := OpenTarget(t.Context(), path, mib, o)
		if err == nil {
			t.Errorf("%s: it was opened", text)
			err = target.Close()
		}
		if err == nil || !bytes.Contains([]byte(err.Error()), []byte(text)) || errclass.Of(err) == errclass.None {
			t.Errorf("%v, want %q", err, text)
		}
	}
	target, err := OpenTarget(t.Context(), path, mib, TargetOptions{Overwrite: true, Compare: &Comparison{}})
	if err != nil {
		t.Fatal(err)
	}
	wantError(t, target.WriteAt(t.Context(), make([]byte, 2), mib-1), errclass.Invalid, path)
	wantError(t, target.Zero(t.Context(), extent.Extent{Offset: -1, Length: 1}), errclass.Invalid, path)
	if err := target.Close(); err != nil {
		t.Fatal(err)
	}
}

// What cannot be read is written.
func TestComparison_writesWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	path, _ := fileWith(t, make([]byte, mib))
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	counts := &Comparison{}
	target := newComparedTarget(&fileTarget{f: f, bytes: mib, regular: true}, counts)
	want := noise(mib, 2)
	if err := errors.Join(target.WriteAt(t.Context(), want, 0), target.Close()); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) || counts.WrittenBytes() != mib {
		t.Errorf("%d bytes were written, %v", counts.WrittenBytes(), err)
	}
}

func BenchmarkComparison(b *testing.B) {
	path := filepath.Join(b.TempDir(), "disk.img")
	want := noise(mib, 1)
	if err := os.WriteFile(path, want, 0o600); err != nil {
		b.Fatal(err)
	}
	target, err := OpenTarget(b.Context(), path, mib, TargetOptions{Overwrite: true, Compare: &Comparison{}})
	if err != nil {
		b.Fatal(err)
	}
	defer target.Close()
	b.SetBytes(mib)
	b.ReportAllocs()
	for b.Loop() {
		if err := target.WriteAt(b.Context(), want, 0); err != nil {
			b.Fatal(err)
		}
	}
}
