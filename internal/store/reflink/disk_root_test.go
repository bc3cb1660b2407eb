//go:build root

package reflink

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/disk/disktest"
	"github.com/varvebackup/varve/test/verdict"
	"github.com/varvebackup/varve/test/wait"
)

func TestReflink_conformance(t *testing.T) {
	t.Parallel()
	for _, x := range []struct{ name, kind, mountOptions string }{
		{"xfs", "xfs", ""}, {"btrfs", "btrfs", ""}, {"btrfs compressed", "btrfs", "compress-force=zstd"},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			s := newFileSystem(t, x.kind)
			s.unmount(t)
			s.mountOptions = x.mountOptions
			s.mount(t)
			open := func(t *testing.T) disk.Disk {
				d := s.openDisk(t, Options{})
				t.Cleanup(func() {
					if err := errors.Join(removeTree(filepath.Join(s.dir, imagesDir)), removeTree(filepath.Join(s.dir, volumesDir)),
						removeTree(filepath.Join(s.dir, headerFile)), removeTree(filepath.Join(s.dir, reserveFile))); err != nil {
						t.Error(err)
					}
				})
				return d
			}
			disktest.Run(t, disktest.Kind{Open: open, Reopen: func(t *testing.T, old disk.Disk) disk.Disk {
				wantNothingElse(t, old.(*Disk))
				if err := old.(*Disk).Close(); err != nil {
					t.Fatal(err)
				}
				d := s.openDisk(t, Options{})
				for _, line := range d.Recovered() {
					if !strings.Contains(line, "a bit") { // which the suite has marked
						t.Errorf("recovered %q", line)
					}
				}
				return d
			}})
		})
	}
}

func TestOpen_refuses(t *testing.T) {
	t.Parallel()
	xfs, plain, ext4 := newFileSystem(t, "xfs"), newFileSystem(t, "xfs", "-m", "reflink=0"), newFileSystem(t, "ext4")
	d := xfs.openDisk(t, Options{})
	wantOpenError(t, xfs.dir, errclass.Conflict, "another process uses it")
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	wantOpenError(t, t.TempDir(), errclass.NotFound, "is not a disk of Varve")
	for dir, words := range map[string]string{
		plain.dir: "use XFS made with reflink=1", ext4.dir: "neither XFS nor btrfs",
	} {
		if err := errors.Join(os.RemoveAll(filepath.Join(dir, "lost+found")), Format(dir, "disk-1")); err != nil {
			t.Fatal(err)
		}
		wantOpenError(t, dir, errclass.Invalid, words)
		if found, err := filepath.Glob(dir + "/*.new*"); err != nil || len(found) > 0 {
			t.Errorf("left %v, %v", found, err)
		}
	}
	newer := []byte(`{"format": 2, "disks": 3}`)
	if err := os.WriteFile(filepath.Join(xfs.dir, headerFile), newer, 0o600); err != nil {
		t.Fatal(err)
	}
	wantOpenError(t, xfs.dir, errclass.Invalid, "format version 2, and this Varve knows 1 to 1: use a newer Varve")
}

// A disk that is closed does not say that it lacks something: whoever is told NotFound takes it as deleted.
func TestCloseUnused_answersNothingMore(t *testing.T) {
	t.Parallel()
	d := newFileSystem(t, "xfs").openDisk(t, Options{})
	head := disk.Source{UID: "h", Volume: "v", Bytes: 4096}
	if err := errors.Join(d.Create(t.Context(), "volume/h", head), d.CloseUnused()); err != nil {
		t.Fatal(err)
	}
	for name, call := range map[string]func(name disk.Name) error{
		"list":   func(disk.Name) error { _, err := d.List(t.Context()); return err },
		"usage":  func(disk.Name) error { _, err := d.Usage(t.Context()); return err },
		"create": func(name disk.Name) error { return d.Create(t.Context(), name, head) },
		"snapshot": func(name disk.Name) error {
			return d.Snapshot(t.Context(), name, "snapshot", disk.Seal{UID: "s", Kind: disk.KindSnapshot})
		},
		"open":   func(name disk.Name) error { _, err := d.Open(t.Context(), name); return err },
		"users":  func(name disk.Name) error { _, err := d.Users(t.Context(), name); return err },
		"pieces": func(name disk.Name) error { _, err := d.Pieces(t.Context(), name); return err },
		"delete": func(name disk.Name) error { return d.Delete(t.Context(), name) },
		"changed": func(name disk.Name) error {
			for _, err := range d.Changed(t.Context(), name, "") {
				return err
			}
			return nil
		},
	} {
		for _, object := range []disk.Name{"volume/h", "missing"} {
			if err := call(object); !errors.Is(err, errclass.Transient) || errors.Is(err, errclass.NotFound) {
				t.Errorf("%s %s: %v, want class %v", name, object, err, errclass.Transient)
			}
		}
	}
}

func wantOpenError(t *testing.T, dir string, class error, words string) {
	t.Helper()
	d, err := Open(t.Context(), dir, Options{})
	if err == nil {
		t.Fatalf("%s was opened: %v", dir, d.Close())
	}
	if !errors.Is(err, class) || !strings.Contains(err.Error(), words) || !strings.Contains(err.Error(), dir) {
		t.Errorf("%v: class %v, want %v and %q", err, errclass.Of(err), class, words)
	}
}

// A head of many extents stands still while it is cloned, so it is not while somebody uses it. What nobody writes may have
// as many as it likes: images and other snapshots are cloned.
func TestSnapshot_refusesManyExtents(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"xfs", "btrfs"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			opened := newFileSystem(t, kind).openDisk(t, Options{MaxExtents: 5000})
			d := disktest.Disk{Disk: opened, TB: t}
			d.NewHead("h", "h", "", 100<<20)
			write := func(from, to int64) { // each second block, so that each is an extent
				file, err := os.OpenFile(opened.dir+"/volumes/v-h/h/head", os.O_RDWR, 0)
				for i := from; i < to && err == nil; i++ {
					_, err = file.WriteAt([]byte{1}, i*8192)
				}
				if err = errors.Join(err, file.Close()); err != nil {
					t.Fatal(err)
				}
			}
			write(0, 5000) // more than a page of FIEMAP
			d.NewSnapshot("h", "s", "s")
			n, next := 0, int64(0)
			for e, err := range d.Changed(t.Context(), "s", "") {
				if n++; err != nil || e.Offset != next || e.Length != 4096 {
					t.Fatalf("extent %d: %v, %v", n, e, err)
				}
				next += 8192
			}
			if n != 5000 {
				t.Errorf("%d extents", n)
			}
			write(5000, 5001)
			lease, err := d.Open(t.Context(), "h")
			if err != nil {
				t.Fatal(err)
			}
			err = d.Snapshot(t.Context(), "h", "t", disk.Seal{UID: "t", Kind: disk.KindSnapshot})
			if !errors.Is(err, errclass.Conflict) || !strings.Contains(fmt.Sprint(err), "more than 5000 extents") {
				t.Error(err)
			}
			wantNothingElse(t, opened)
			if err := lease.Close(); err != nil {
				t.Fatal(err)
			}
			d.NewSnapshot("h", "t", "t")
			if err := d.Snapshot(t.Context(), "h", "i", disk.Seal{UID: "i", Kind: disk.KindImage}); err != nil {
				t.Error(err)
			}
			d.NewHead("c", "c", "i", 100<<20)
			wantNothingElse(t, opened)
		})
	}
}

// What is reserved, but was not written, reads as zeroes: a hole.
func TestChanged_unwrittenIsAHole(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"xfs", "btrfs"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			opened := newFileSystem(t, kind).openDisk(t, Options{})
			d := disktest.Disk{Disk: opened, TB: t}
			d.NewHead("h", "h", "", 1<<20)
			file, err := os.OpenFile(filepath.Join(opened.dir, "volumes/v-h/h/head"), os.O_RDWR, 0)
			if err == nil {
				err = errors.Join(unix.Fallocate(int(file.Fd()), 0, 0, 1<<20), file.Close())
			}
			if err != nil {
				t.Fatal(err)
			}
			d.NewSnapshot("h", "s", "s")
			d.Write("h", 65536, disktest.Noise(1, 4096))
			for _, since := range []disk.Name{"", "s"} {
				var got []extent.Extent
				for e, err := range d.Changed(t.Context(), "h", since) {
					got = append(got, e)
					if err != nil {
						t.Fatal(err)
					}
				}
				if diff := cmp.Diff([]extent.Extent{{Offset: 65536, Length: 4096}}, got); diff != "" {
					t.Errorf("since %q: %s", since, diff)
				}
			}
		})
	}
}

// While a snapshot of a head is made, neither can be made a second time, and the head stays.
func TestSnapshot_isTheOnlyChange(t *testing.T) {
	t.Parallel()
	opened := newFileSystem(t, "xfs").openDisk(t, Options{})
	d := disktest.Disk{Disk: opened, TB: t}
	d.NewHead("h", "h", "", 5000)
	seal := disk.Seal{UID: "s", Kind: disk.KindSnapshot}
	other := disk.Seal{UID: "t", Kind: disk.KindSnapshot}
	reached := 0
	opened.reached = func(step string) error {
		if reached++; step != "clone" {
			return nil
		}
		ctx := t.Context()
		for class, err := range map[error]error{
			errclass.Transient: errors.Join(d.Snapshot(ctx, "h", "s", seal), d.Snapshot(ctx, "h", "t", other)),
			errclass.Conflict:  d.Delete(ctx, "h"),
		} {
			if !errors.Is(err, class) {
				t.Errorf("%v: class %v, not %v", err, errclass.Of(err), class)
			}
		}
		return nil
	}
	d.NewSnapshot("h", "s", "s")
	if n := len(d.Objects()); n != 2 || reached == 0 {
		t.Errorf("%d objects, %d steps", n, reached)
	}
}

// Nobody leases a head whose data is taken exclusively, until it is taken, whether that fails or not.
func TestSnapshot_keepsUsersAway(t *testing.T) {
	t.Parallel()
	opened := newFileSystem(t, "xfs").openDisk(t, Options{})
	d := disktest.Disk{Disk: opened, TB: t}
	d.NewHead("h", "h", "", 5000)
	seal := disk.Seal{UID: "i", Kind: disk.KindImage, Exclusive: true}
	failure := errors.New("cut")
	for _, kind := range []disk.Kind{disk.KindImage, disk.KindSnapshot} {
		for _, fails := range []bool{true, false} {
			seal.Kind, seal.UID = kind, disk.UID(kind)
			var steps []string
			opened.reached = func(step string) error {
				if !slices.Contains([]string{"clone", "data", "hashes", "immutable"}, step) {
					return nil // the disk's mutex is held
				}
				lease, err := d.Open(t.Context(), "h")
				switch {
				case err == nil:
					err = lease.Close()
				case errors.Is(err, errclass.Transient):
					steps, err = append(steps, step), nil
				}
				if err != nil {
					t.Error(err)
				}
				if fails && step == "data" {
					return failure
				}
				return nil
			}
			err := d.Snapshot(t.Context(), "h", disk.Name(kind), seal)
			opened.reached = nil
			if errors.Is(err, failure) != fails || !fails && err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{"clone", "data"}, steps); diff != "" {
				t.Errorf("%s: nobody could lease the head at these steps: %s", kind, diff)
			}
			lease, err := d.Open(t.Context(), "h")
			if err == nil {
				err = lease.Close()
			}
			if err != nil {
				t.Error(err)
			}
		}
	}
}

// A head can be deleted while an image of it is read back, and the image is whole all the same.
func TestSnapshot_exclusiveImageNeedsNoHead(t *testing.T) {
	t.Parallel()
	opened := newFileSystem(t, "xfs").openDisk(t, Options{})
	d := disktest.Disk{Disk: opened, TB: t}
	d.NewHead("h", "h", "", 5000)
	d.Write("h", 0, disktest.Noise(9, 5000))
	opened.reached = func(step string) error {
		if step == "hashes" {
			opened.reached = nil // it would be reached by Delete, too
			return d.Delete(t.Context(), "h")
		}
		return nil
	}
	seal := disk.Seal{UID: "i", Kind: disk.KindImage, Exclusive: true}
	for range 2 {
		if err := d.Snapshot(t.Context(), "h", "i", seal); err != nil {
			t.Fatal(err)
		}
	}
	if got := d.Read("i"); !bytes.Equal(got, disktest.Noise(9, 5000)) {
		verdict.Errorf(t, "the image")
	}
	if all := d.Objects(); len(all) != 1 {
		t.Errorf("left: %v", all)
	}
}

// A full disk says so, and a failed call leaves nothing.
func TestDisk_full(t *testing.T) {
	t.Parallel()
	s := newFileSystem(t, "xfs")
	opened := s.openDisk(t, Options{})
	d := disktest.Disk{Disk: opened, TB: t}
	d.NewHead("h", "h", "", 1<<20)
	filler, err := os.Create(filepath.Join(s.dir, "filler"))
	for size := 1 << 20; err == nil && size >= 512; size /= 2 {
		for err == nil {
			_, err = filler.Write(make([]byte, size))
		}
		if errclass.IsFull(err) {
			err = nil
		}
	}
	if err = errors.Join(err, filler.Close()); err != nil {
		t.Fatal(err)
	}
	for i := 0; err == nil && i < 100_000; i++ { // until what is kept for metadata is used, too
		uid := disk.UID(fmt.Sprint("n", i))
		err = d.Create(t.Context(), disk.Name(uid), disk.Source{UID: uid, Volume: "v", Bytes: 1})
	}
	if !errors.Is(err, errclass.Exhausted) || !strings.Contains(err.Error(), "the disk is full") {
		t.Errorf("class %v: %v", errclass.Of(err), err)
	}
	if err := os.Remove(filler.Name()); err != nil {
		t.Fatal(err)
	}
	// XFS gives the space of what was removed back in the background.
	wait.Until(t, time.Minute, "space that was freed", func() bool {
		var stat unix.Statfs_t
		return unix.Statfs(s.dir, &stat) == nil && stat.Bfree > stat.Blocks/2
	})
	wantNothingElse(t, opened)
	d.NewHead("x", "x", "", 1)
}

// What a crash leaves goes, and Open says so.
func TestOpen_removesLeftovers(t *testing.T) {
	t.Parallel()
	s := newFileSystem(t, "xfs")
	opened := s.openDisk(t, Options{})
	d := disktest.Disk{Disk: opened, TB: t}
	d.NewImage("i", "i", disktest.Noise(1, 5000))
	d.NewHead("h", "h", "i", 5000)
	d.NewSnapshot("h", "s", "s")
	if err := d.Delete(t.Context(), "h"); err != nil {
		t.Fatal(err)
	}
	leftovers := []string{
		"images/a.gone/data", "images/b.new/data", "images/i/meta.json.1.new", "varve-disk.json.2.new",
		"volumes/v-h/h/head", "volumes/v-h/h/meta.json.3.new", "volumes/v-h/h/snapshots/gone",
		"volumes/v-h/h/snapshots/t.new", "volumes/v-h/x.new/head", "volumes/w/y.gone/snapshots/s",
	}
	for _, name := range leftovers {
		path := filepath.Join(s.dir, name)
		err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, nil, 0o600), setImmutable(path, true))
		if err != nil {
			t.Fatal(err)
		}
	}
	before := d.Objects()
	if err := opened.Close(); err != nil {
		t.Fatal(err)
	}
	opened = s.openDisk(t, Options{})
	if diff := cmp.Diff(before, disktest.Disk{Disk: opened, TB: t}.Objects()); diff != "" {
		t.Error(diff)
	}
	wantNothingElse(t, opened)
	said := strings.Join(opened.Recovered(), "\n")
	if strings.Count(said, "removed ") != len(leftovers) || !strings.Contains(said, "snapshots/t.new") {
		t.Errorf("said:\n%s", said)
	}
}

// Data that is not what was sealed can only be deleted. What cannot be read stays.
func TestOpen_findsDamage(t *testing.T) {
	t.Parallel()
	s := newFileSystem(t, "xfs")
	opened := s.openDisk(t, Options{})
	d := disktest.Disk{Disk: opened, TB: t}
	for _, uid := range []disk.UID{"good", "short", "open", "gone", "unread"} {
		d.NewImage(disk.Name(uid), uid, disktest.Noise(1, 5000))
	}
	path := func(uid, file string) string { return filepath.Join(s.dir, imagesDir, uid, file) }
	err := errors.Join(setImmutable(path("short", "data"), false), os.Truncate(path("short", "data"), 4999),
		setImmutable(path("short", "data"), true), setImmutable(path("open", "data"), false),
		removeTree(path("gone", "data")),
		os.WriteFile(path("unread", metadataFile), []byte("{"), 0o600), opened.Close())
	if err != nil {
		t.Fatal(err)
	}
	opened = s.openDisk(t, Options{})
	d.Disk = opened
	if n := len(opened.Recovered()); n != 4 {
		t.Errorf("%d findings: %q", n, opened.Recovered())
	}
	for _, name := range []disk.Name{"short", "open", "gone"} {
		if o := d.Find(name); o.State != disk.StateDamaged {
			t.Errorf("%+v", o)
		}
		if _, err := d.Open(t.Context(), name); !errors.Is(err, errclass.Corrupt) {
			t.Error(err)
		}
		if err := d.Delete(t.Context(), name); err != nil {
			t.Error(err)
		}
		d.NewImage(name, disk.UID(name), disktest.Noise(1, 5000))
	}
	d.NewHead("h", "h", "good", 5000)
	err = d.Snapshot(t.Context(), "h", "unread", disk.Seal{UID: "unread", Kind: disk.KindImage})
	if !errors.Is(err, errclass.Corrupt) || !strings.Contains(fmt.Sprint(err), path("unread", "")) {
		t.Error(err)
	}
	if _, err := os.Stat(path("unread", "data")); err != nil {
		t.Error(err)
	}
	if !bytes.Equal(d.Read("h"), disktest.Noise(1, 5000)) {
		verdict.Errorf(t, "a clone of an image beside damaged ones")
	}
}
