package disk

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/nbd"
	"github.com/varvebackup/varve/test/verdict"
)

// place is where a test writes a disk, and how it reads it back.
type place struct {
	name string
	// size is the disk's, align the alignment of writes, except at the disk's end.
	size, align int64
	// make returns the target's spec, how to open it, and the bytes that it has once it is open.
	make func(t *testing.T) (spec string, o TargetOptions, before []byte)
}

const propertyBytes = mib + 4*kib + 512

var places = []place{
	{"new file", propertyBytes + 7, 1, func(t *testing.T) (string, TargetOptions, []byte) {
		t.Helper()
		return filepath.Join(t.TempDir(), "new.img"), TargetOptions{}, make([]byte, propertyBytes+7)
	}},
	{"smaller file with content", propertyBytes, 1, func(t *testing.T) (string, TargetOptions, []byte) {
		t.Helper()
		path, _ := sparseFile(t, mib, extent.Extent{Length: mib})
		return path, TargetOptions{Overwrite: true}, make([]byte, propertyBytes)
	}},
	{"larger file with content", propertyBytes, 1, func(t *testing.T) (string, TargetOptions, []byte) {
		t.Helper()
		path, content := sparseFile(t, 2*mib, extent.Extent{Length: mib}, extent.Extent{Offset: 2*mib - 1, Length: 1})
		return path, TargetOptions{Overwrite: true, Larger: true}, content
	}},
	{"export", propertyBytes, 512, func(t *testing.T) (string, TargetOptions, []byte) {
		t.Helper()
		uri := serveNBD(t, nbd.Export{Backend: &ram{data: make([]byte, propertyBytes)}, Block: nbd.BlockSizes{Minimum: 512}, MultiConn: true})
		return uri, TargetOptions{}, make([]byte, propertyBytes)
	}},
	{"larger export with content and large blocks", propertyBytes - 100, 4 * kib, func(t *testing.T) (string, TargetOptions, []byte) {
		t.Helper()
		content := noise(2*mib, 9)
		uri := serveNBD(t, nbd.Export{Backend: &ram{data: bytes.Clone(content)}, Block: nbd.BlockSizes{Minimum: 4 * kib}})
		return uri, TargetOptions{Overwrite: true, Larger: true}, content
	}},
	{"export that knows nothing", propertyBytes, 1, func(t *testing.T) (string, TargetOptions, []byte) {
		t.Helper()
		content := noise(propertyBytes, 3)
		return serveNBD(t, nbd.Export{Backend: plainRAM{&ram{data: bytes.Clone(content)}}}), TargetOptions{Overwrite: true}, content
	}},
}

// TestTarget_isReadAsWritten writes data and zeroes in any order and reads them through a source.
func TestTarget_isReadAsWritten(t *testing.T) {
	t.Parallel()
	for _, p := range places {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(r *rapid.T) {
				spec, o, model := p.make(t)
				target, err := OpenTarget(t.Context(), spec, p.size, o)
				if err != nil {
					r.Fatal(err)
				}
				err = writeAnything(t, r, target, model, p.align)
				if err := errors.Join(err, target.Sync(t.Context()), target.Close()); err != nil {
					r.Fatal(err)
				}
				s, err := OpenSource(t.Context(), spec, SourceOptions{})
				if err != nil {
					r.Fatal(err)
				}
				defer s.Close()
				wantBytes(t, s, model)
			})
		})
	}
}

// writeAnything changes a target and the model of its bytes in the same way.
func writeAnything(t *testing.T, r *rapid.T, target Target, model []byte, align int64) error {
	t.Helper()
	size := target.Bytes()
	steps := rapid.IntRange(0, 12).Draw(r, "steps")
	var all error
	for i := range steps {
		at := rapid.Int64Range(0, size-1).Draw(r, "at") / align * align
		end := min((at+rapid.Int64Range(1, 300*kib).Draw(r, "length")+align-1)/align*align, size)
		e := extent.Extent{Offset: at, Length: end - at}
		if rapid.Bool().Draw(r, "zero") {
			clear(model[at:end])
			all = errors.Join(all, target.Zero(t.Context(), e))
		} else {
			copy(model[at:end], noise(int(e.Length), uint64(i)))
			all = errors.Join(all, target.WriteAt(t.Context(), model[at:end:end], at))
		}
		if rest := (end + align - 1) / align * align; end == size && rest <= int64(len(model)) {
			clear(model[end:rest]) // the rest of the disk's last block
		}
	}
	return all
}

func TestTarget_newFileStaysSparse(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "disk.img")
	const size = 1 << 40
	target, err := OpenTarget(t.Context(), path, size, TargetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	err = errors.Join(target.Zero(ctx, extent.Extent{Length: size / 2}), target.WriteAt(ctx, noise(mib, 1), size/2),
		target.WriteAt(ctx, noise(mib, 1), 0), target.Zero(ctx, extent.Extent{Length: mib / 2}), target.Sync(ctx), target.Close())
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Size() != size || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if got := used(t, path); got < mib || got > 2*mib {
		t.Errorf("%d bytes are allocated for 1.5 MiB of data", got)
	}
}

// On an export, zeroing what is already zero writes nothing.
func TestTarget_zeroesAreWrittenOnlyWhereNeeded(t *testing.T) {
	t.Parallel()
	d := &ram{data: make([]byte, 8*mib)}
	copy(d.data[mib:], noise(64*kib, 1))
	target, err := OpenTarget(t.Context(), serveNBD(t, nbd.Export{Backend: d}), 8*mib, TargetOptions{Overwrite: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(target.Zero(t.Context(), extent.Extent{Length: 8 * mib}), target.Sync(t.Context()), target.Close()); err != nil {
		t.Fatal(err)
	}
	if !isZero(d.data) || d.written != 64*kib || d.flushes != 1 {
		verdict.Errorf(t, "%d bytes written, %d flushes", d.written, d.flushes)
	}
}

func TestTarget_refused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, content := sparseFile(t, 2*mib, extent.Extent{Offset: mib, Length: 1})
	link := filepath.Join(dir, "link")
	if err := os.Symlink("nowhere", link); err != nil {
		t.Fatal(err)
	}
	full := &ram{data: noise(2*mib, 1)}
	uri, readOnly := serveNBD(t, nbd.Export{Backend: full}), serveNBD(t, nbd.Export{Backend: full, ReadOnly: true})
	for _, c := range []struct {
		spec  string
		bytes int64
		o     TargetOptions
		class error
		text  string
	}{
		{path, 2 * mib, TargetOptions{}, errclass.Conflict, "overwrite this one"},
		{path, 0, TargetOptions{}, errclass.Invalid, "0 bytes"},
		{"x.qcow2", mib, TargetOptions{}, errclass.Invalid, "qcow2 or raw"},
		{dir, mib, TargetOptions{Overwrite: true}, errclass.Invalid, "neither a file nor a block device"},
		{"/dev/no-such-disk", mib, TargetOptions{}, ErrNotFound, "check its name"},
		{link, mib, TargetOptions{}, ErrNotFound, "link to nowhere"},
		{filepath.Join(dir, "no", "folder.img"), mib, TargetOptions{}, ErrNotFound, "there is no directory"},
		{uri, 2 * mib, TargetOptions{}, errclass.Conflict, "2097152 bytes"},
		{uri, 2*mib + 1, TargetOptions{Overwrite: true, Larger: true}, errclass.Invalid, "has 2097152 bytes, too few for a disk of 2097153 bytes"},
		{uri, 2*mib - 1, TargetOptions{Overwrite: true}, errclass.Invalid, "has 2097152 bytes, more than the disk's 2097151"},
		{uri, 2 * mib, TargetOptions{Format: QCOW2}, errclass.Invalid, "has no format"},
		{readOnly, 2 * mib, TargetOptions{Overwrite: true}, errclass.Invalid, "read-only"},
	} {
		target, err := OpenTarget(t.Context(), c.spec, c.bytes, c.o)
		if err == nil {
			t.Errorf("%s was opened", c.spec)
			err = target.Close()
		}
		wantError(t, err, c.class, c.text)
	}
	wantBytes(t, openSource(t, path, SourceOptions{}), content)
	if full.written != 0 {
		t.Error("the export was written")
	}
}

// A sparse file of zeroes that somebody made for the disk is as good as no file.
func TestTarget_holeIsEmpty(t *testing.T) {
	t.Parallel()
	for larger, want := range map[bool]int64{false: mib, true: 4 * mib} {
		path, _ := sparseFile(t, 4*mib)
		target, err := OpenTarget(t.Context(), path, mib, TargetOptions{Larger: larger})
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err := errors.Join(err, target.Close()); err != nil {
			t.Fatal(err)
		}
		if info.Size() != want || target.Bytes() != mib {
			t.Errorf("larger %t: file of %d bytes, target of %d", larger, info.Size(), target.Bytes())
		}
	}
}

func TestRestore_oneAtATime(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "disk.img")
	target, err := OpenTarget(t.Context(), path, mib, TargetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = OpenTarget(t.Context(), path, mib, TargetOptions{Overwrite: true})
	wantError(t, err, errclass.Conflict, path, "in use")
	_, err = OpenSource(t.Context(), path, SourceOptions{})
	wantError(t, err, errclass.Conflict, path, "target of a restore that runs")
	if err := target.Close(); err != nil {
		t.Fatal(err)
	}
	source, err := OpenSource(t.Context(), path, SourceOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = OpenTarget(t.Context(), path, mib, TargetOptions{Overwrite: true})
	wantError(t, err, errclass.Conflict, path, "in use")
	other, err := OpenSource(t.Context(), path, SourceOptions{}) // any number may read
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(source.Close(), other.Close()); err != nil {
		t.Fatal(err)
	}
	again, err := OpenTarget(t.Context(), path, mib, TargetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	wantError(t, again.WriteAt(t.Context(), make([]byte, 2), mib-1), errclass.Invalid, path)
	wantError(t, again.Zero(t.Context(), extent.Extent{Offset: -1, Length: 1}), errclass.Invalid, path)
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
}

// A target that cannot free space gets zeroes written, and only where there are none.
func TestTarget_blanksOnlyWhatIsNotZero(t *testing.T) {
	t.Parallel()
	path, _ := sparseFile(t, 8*mib, extent.Extent{Offset: 3 * mib, Length: 100 * kib})
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	target := &fileTarget{f: f, bytes: 8 * mib}
	target.plain.Store(true)
	before := used(t, path)
	if err := errors.Join(target.Zero(t.Context(), extent.Extent{Offset: 5, Length: 8*mib - 10}), target.Sync(t.Context()), target.Close()); err != nil {
		t.Fatal(err)
	}
	wantBytes(t, openSource(t, path, SourceOptions{}), make([]byte, 8*mib))
	if got := used(t, path); got > before+2*granuleBytes {
		t.Errorf("%d bytes allocated, before %d", got, before)
	}
}

func TestQEMU_missingProgramNamesItsPackage(t *testing.T) {
	path, _ := sparseFile(t, mib)
	t.Setenv("PATH", t.TempDir())
	_, err := OpenSource(t.Context(), path, SourceOptions{Format: QCOW2})
	wantError(t, err, ErrNotFound, serverProgram, "qemu-system-common")
	made := filepath.Join(t.TempDir(), "new.qcow2")
	_, err = OpenTarget(t.Context(), made, mib, TargetOptions{Format: QCOW2})
	wantError(t, err, ErrNotFound, "qemu-", "install")
	if _, err := os.Stat(made); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s: %v", made, err)
	}
}
