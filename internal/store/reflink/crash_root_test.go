//go:build root

package reflink

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/disk/disktest"
	"github.com/varvebackup/varve/test/verdict"
)

// errCrashed is what a call returns that crashed.
var errCrashed = errors.New("the file system was shut down")

// crashing is a change that crashes after each of its steps in turn.
type crashing struct {
	name    string
	prepare func(disktest.Disk, func() []byte) // what is there before; the function returns data
	change  func(t *testing.T, d disk.Disk) error
	steps   int // at least
}

func seal(head, name disk.Name, kind disk.Kind) func(*testing.T, disk.Disk) error {
	return func(t *testing.T, d disk.Disk) error {
		return d.Snapshot(t.Context(), head, name, disk.Seal{UID: disk.UID(name), Kind: kind})
	}
}

func create(name, from disk.Name) func(*testing.T, disk.Disk) error {
	return func(t *testing.T, d disk.Disk) error {
		return d.Create(t.Context(), name, disk.Source{UID: disk.UID(name), Volume: "v", From: from, Bytes: crashBytes + 1})
	}
}

func remove(name disk.Name) func(*testing.T, disk.Disk) error {
	return func(t *testing.T, d disk.Disk) error { return d.Delete(t.Context(), name) }
}

func grow(name disk.Name) func(*testing.T, disk.Disk) error {
	return func(t *testing.T, d disk.Disk) error { return d.Grow(t.Context(), name, 2*crashBytes) }
}

const crashBytes = 1_000_001

var crashes = []crashing{
	{name: "create empty", prepare: prepareImage, change: create("new", ""), steps: 5},
	{name: "create clone", prepare: prepareImage, change: create("new", "image"), steps: 6},
	{name: "snapshot", prepare: prepareHead, change: seal("h", "s3", disk.KindSnapshot), steps: 6},
	{name: "image", prepare: prepareHead, change: seal("h", "other", disk.KindImage), steps: 7},
	{name: "delete image", prepare: prepareImage, change: remove("image"), steps: 3},
	{name: "delete head", prepare: prepareHead, change: remove("h"), steps: 2},
	{name: "delete oldest snapshot", prepare: prepareHead, change: remove("s1"), steps: 2},
	{name: "delete newest snapshot", prepare: prepareHead, change: remove("s2"), steps: 2},
	{name: "grow", prepare: prepareHead, change: grow("h"), steps: 4},
	{name: "delete replica", prepare: prepareEmpty, change: remove("h"), steps: 3},
}

func prepareEmpty(d disktest.Disk, _ func() []byte) { d.NewHead("h", "h", "", 1) }

func prepareImage(d disktest.Disk, data func() []byte) { d.NewImage("image", "image", data()) }

func prepareHead(d disktest.Disk, data func() []byte) {
	prepareImage(d, data)
	d.NewHead("h", "h", "image", crashBytes)
	for i := range 2 {
		d.Write("h", 0, data())
		uid := disk.UID(fmt.Sprint("s", i+1))
		d.NewSnapshot("h", disk.Name(uid), uid)
	}
	d.Write("h", 0, data())
}

// contents is what a disk has: its objects, and the checksums of their bytes.
type contents struct {
	Objects []disk.Object
	Sums    map[disk.Name]string
}

func readContents(d disktest.Disk) contents {
	d.TB.Helper()
	c := contents{Objects: d.Objects(), Sums: map[disk.Name]string{}}
	for _, o := range c.Objects {
		c.Sums[o.Name] = disktest.Checksum(d.Read(o.Name))
	}
	return c
}

// After a crash at any step the disk has the old state or the new one, with all bytes, and nothing else.
func TestCrash_afterEachStep(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for _, c := range crashes {
		for _, how := range []uint32{shutdownNoFlushLog, shutdownFlushLog} {
			t.Run(fmt.Sprintf("%s/log flushed %v", c.name, how == shutdownFlushLog), func(t *testing.T) {
				t.Parallel()
				crashEverywhere(t, c, how, seed)
			})
		}
	}
}

func crashEverywhere(t *testing.T, c crashing, how uint32, seed uint64) {
	t.Helper()
	s := newFileSystem(t, "xfs")
	before := prepareCrash(t, s, c, seed)
	steps := 0
	after := doChange(t, s, c, func(string) error { steps++; return nil })
	var old, changed []string
	for step := range steps {
		prepareCrash(t, s, c, seed)
		name := ""
		left := doChange(t, s, c, func(reached string) error {
			if step--; step >= 0 {
				return nil
			}
			if name == "" {
				name = reached
				return errors.Join(errCrashed, s.crash(how))
			}
			return errCrashed
		})
		switch {
		case cmp.Equal(left, after):
			changed = append(changed, name)
		case cmp.Equal(left, before) && name != "gone" && name != "done":
			old = append(old, name)
			if diff := cmp.Diff(after, doChange(t, s, c, nil)); diff != "" {
				verdict.Errorf(t, "the same call again after step %s (-want +got):\n%s", name, diff)
			}
		default:
			oldDiff, newDiff := cmp.Diff(before, left), cmp.Diff(after, left)
			verdict.Errorf(t, "step %s: (-old +got):\n%s(-new +got):\n%s", name, oldDiff, newDiff)
		}
	}
	t.Logf("old state after %q, new state after %q", old, changed)
	if steps < c.steps || (len(old) == 0 && how == shutdownNoFlushLog && c.steps > 2) {
		t.Errorf("%d steps, not %d or more; old %q", steps, c.steps, old)
	}
}

// prepareCrash gives the disk what is there before a change. It is the same for a seed.
func prepareCrash(t *testing.T, s *fileSystem, c crashing, seed uint64) contents {
	t.Helper()
	opened := s.openDisk(t, Options{})
	d := disktest.Disk{Disk: opened, TB: t}
	for objects := d.Objects(); len(objects) > 0; objects = d.Objects() { // clones before what they are clones of
		for _, o := range objects {
			_ = d.Delete(t.Context(), o.Name)
		}
	}
	random := rand.New(rand.NewPCG(seed, 3))
	c.prepare(d, func() []byte {
		data := make([]byte, crashBytes)
		copy(data, disktest.Noise(byte(random.Uint32()), 1+random.Int64N(crashBytes)))
		return data
	})
	prepared := readContents(d)
	if err := opened.Close(); err != nil {
		t.Fatal(err)
	}
	return prepared
}

// doChange makes a change, which may crash, and returns what the disk has after it was mounted and opened again.
func doChange(t *testing.T, s *fileSystem, c crashing, reached func(string) error) contents {
	t.Helper()
	d := s.openDisk(t, Options{})
	d.reached = reached
	if err := c.change(t, d); err != nil && !errors.Is(err, errCrashed) {
		t.Fatal(err)
	}
	_ = d.Close() // which fails if the file system is gone
	s.unmount(t)
	s.mount(t)
	d = s.openDisk(t, Options{})
	wantNothingElse(t, d)
	left := readContents(disktest.Disk{Disk: d, TB: t})
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	return left
}
