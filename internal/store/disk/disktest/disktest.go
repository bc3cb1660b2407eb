// Package disktest checks what every disk promises that holds images and volumes.
package disktest

import (
	"bytes"
	"context"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/store/disk"
)

// wrongData is the mark of test/verdict, which is above this package.
const wrongData = "WRONG DATA: "

// Disk is a disk under test, for which every failure ends the test.
type Disk struct {
	disk.Disk
	TB testing.TB
	// OpenFile opens the path of a lease: os.OpenFile if it is nil.
	OpenFile func(path string, flags int) (File, error)
}

// File is what a lease's path is opened as. It reads from its beginning.
type File interface {
	io.Reader
	io.WriterAt
	io.Closer
	Sync() error
}

// Kind is a kind of disks that the suite checks.
type Kind struct {
	// Open returns an empty disk, and is called for each part of the contract.
	Open func(*testing.T) disk.Disk
	// Reopen closes a disk that Open returned, and opens it again.
	Reopen func(*testing.T, disk.Disk) disk.Disk
	// OpenFile opens the path of a lease: os.OpenFile if it is nil.
	OpenFile func(path string, flags int) (File, error)
	// Instead has what is checked in place of the parts of the contract that the kind does not keep.
	Instead map[string]func(*testing.T, Disk)
}

// Run checks the contract of disk.Disk.
func Run(t *testing.T, kind Kind) {
	t.Helper()
	for name, check := range map[string]func(*testing.T, Disk){
		"arguments":   checkArguments,
		"create":      checkCreate,
		"snapshot":    checkSnapshot,
		"image":       checkImage,
		"part":        checkPart,
		"pieces":      checkPieces,
		"seal pieces": checkSealPieces,
		"damage":      checkDamage,
		"repair":      checkRepair,
		"place":       checkPlace,
		"delete":      checkDelete,
		"leases":      checkLeases,
		"exclusive":   checkExclusive,
		"changed":     checkChanged,
		"usage":       checkUsage,
		"grow":        checkGrow,
		"independent": checkIndependent,
		"ended":       checkEndedContext,
		"concurrency": checkConcurrency,
	} {
		t.Run(name, func(t *testing.T) {
			if instead := kind.Instead[name]; instead != nil {
				check = instead
			}
			d := Disk{Disk: kind.Open(t), TB: t, OpenFile: kind.OpenFile}
			check(t, d)
			objects := d.Objects()
			d.Disk = kind.Reopen(t, d.Disk)
			if diff := cmp.Diff(objects, d.Objects()); diff != "" {
				t.Errorf("opened again (-before +after):\n%s", diff)
			}
		})
	}
}

// Noise returns bytes that do not repeat, the same ones for a seed.
func Noise(seed byte, n int64) []byte {
	out := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(out) // It never fails.
	return out
}

// Checksum returns the checksum of data.
func Checksum(data []byte) string {
	sum := sha512.Sum512(data)
	return hex.EncodeToString(sum[:])
}

// Objects returns what the disk has.
func (d Disk) Objects() []disk.Object {
	d.TB.Helper()
	all, err := d.List(context.Background())
	d.must(err)
	return all
}

// Find returns an object of the disk.
func (d Disk) Find(name disk.Name) disk.Object {
	d.TB.Helper()
	all := d.Objects()
	i := slices.IndexFunc(all, func(o disk.Object) bool { return o.Name == name })
	if i < 0 {
		d.TB.Fatalf("no %q in %v", name, all)
	}
	return all[i]
}

// Write writes data into a head.
func (d Disk) Write(head disk.Name, offset int64, data []byte) {
	d.TB.Helper()
	d.use(head, os.O_RDWR, func(f File) error {
		_, err := f.WriteAt(data, offset)
		return errors.Join(err, f.Sync())
	})
}

// Read returns all bytes of an object.
func (d Disk) Read(name disk.Name) (data []byte) {
	d.TB.Helper()
	d.use(name, os.O_RDONLY, func(f File) (err error) {
		data, err = io.ReadAll(f)
		return err
	})
	return data
}

func (d Disk) use(name disk.Name, flags int, do func(File) error) {
	d.TB.Helper()
	l, err := d.Open(context.Background(), name)
	d.must(err)
	f, err := d.openFile(l.Path(), flags)
	d.must(err)
	d.must(errors.Join(do(f), f.Close(), l.Close()))
}

func (d Disk) openFile(path string, flags int) (File, error) {
	if d.OpenFile != nil {
		return d.OpenFile(path, flags)
	}
	return os.OpenFile(path, flags, 0)
}

// NewHead creates a head, whose UID is given, of a volume.
func (d Disk) NewHead(name disk.Name, uid disk.UID, from disk.Name, size int64) {
	d.TB.Helper()
	d.must(d.Create(context.Background(), name, disk.Source{UID: uid, Volume: "v-" + uid, From: from, Bytes: size}))
}

// NewImage makes an image of data. Its head is gone afterwards.
func (d Disk) NewImage(name disk.Name, uid disk.UID, data []byte) {
	d.TB.Helper()
	ctx, head := context.Background(), disk.Name("making "+uid)
	d.NewHead(head, "m-"+uid, "", int64(len(data)))
	d.Write(head, 0, data)
	d.must(d.Snapshot(ctx, head, name, disk.Seal{UID: uid, Kind: disk.KindImage, Checksum: Checksum(data)}))
	d.must(d.Delete(ctx, head))
}

// NewSnapshot makes a snapshot of a head.
func (d Disk) NewSnapshot(head, name disk.Name, uid disk.UID) {
	d.TB.Helper()
	d.must(d.Snapshot(context.Background(), head, name, disk.Seal{UID: uid, Kind: disk.KindSnapshot}))
}

// FlipBit flips a bit of an object on the device of the disk's file system. Objects that share the block have the wrong
// bit, too.
func (d Disk) FlipBit(device string, name disk.Name, offset int64) {
	d.TB.Helper()
	placed, err := d.Place(context.Background(), name, extent.Extent{Offset: offset, Length: 1})
	d.must(err)
	if len(placed) != 1 || placed[0].Physical == disk.Unplaced {
		d.TB.Fatalf("byte %d of %q is at %v", offset, name, placed)
	}
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	d.must(err)
	b := make([]byte, 1)
	_, err = f.ReadAt(b, placed[0].Physical)
	b[0] ^= 1
	_, errWrite := f.WriteAt(b, placed[0].Physical)
	d.must(errors.Join(err, errWrite, f.Sync(), f.Close()))
}

func (d Disk) must(err error) {
	d.TB.Helper()
	if err != nil {
		d.TB.Fatal(err)
	}
}

// wantClass checks the class of an error, and that its text has each of the words.
func wantClass(t *testing.T, err, class error, words ...string) {
	t.Helper()
	if !errors.Is(err, class) {
		t.Errorf("the error is %v, not of class %v", err, class)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
}

func wantBytes(t *testing.T, what string, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		t.Errorf(wrongData+"%s: %d bytes, not the %d that were written", what, len(got), len(want))
	}
}

// wantCovered checks that extents are in order within the size, and cover each byte that differs.
func wantCovered(t *testing.T, d Disk, name, since disk.Name, newer, older []byte) extent.Set {
	t.Helper()
	var found []extent.Extent
	for e, err := range d.Changed(t.Context(), name, since) {
		if err != nil {
			t.Fatal(err)
		}
		if n := len(found); e.Empty() || e.End() > int64(len(newer)) || (n > 0 && e.Offset <= found[n-1].End()) {
			t.Fatalf("extent %v after %v in %d bytes", e, found, len(newer))
		}
		found = append(found, e)
	}
	set, at := extent.NewSet(found...), 0
	older = append(bytes.Clone(older), make([]byte, max(0, len(newer)-len(older)))...)
	for at < len(newer) {
		end := min(at+512, len(newer))
		for e := (extent.Extent{Offset: int64(at), Length: 1}); !bytes.Equal(newer[at:end], older[at:end]); e.Offset++ {
			if i := e.Offset; newer[i] != older[i] {
				if !set.Contains(e) {
					t.Fatalf(wrongData+"%s since %s: byte %d changed, and %v does not have it", name, since, i, found)
				}
				older[i] = newer[i]
			}
		}
		at = end
	}
	return set
}
