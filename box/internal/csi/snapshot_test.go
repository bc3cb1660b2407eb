package csi

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/box/internal/loop"
	"github.com/varvebackup/varve/box/internal/xfs"
)

// wrongData is the mark of test/verdict, which this module cannot import.
const wrongData = "WRONG DATA: "

// newXFSStore returns a store on an XFS of its own. It needs root.
func newXFSStore(t *testing.T, node string) store {
	t.Helper()
	dir := t.TempDir()
	image, target := filepath.Join(dir, "volumes.xfs"), filepath.Join(dir, "volumes")
	t.Cleanup(func() {
		if err := errors.Join(loop.DetachTree(target), xfs.Remove(context.Background(), image, target)); err != nil {
			t.Error(err)
		}
	})
	if err := xfs.Ensure(t.Context(), image, target); err != nil {
		t.Fatal(err)
	}
	return store{root: target, node: node}
}

// newVolume creates a volume and returns its file.
func newVolume(t *testing.T, s store, id string, spec volumeSpec) string {
	t.Helper()
	if err := s.createVolume(t.Context(), id, spec); err != nil {
		t.Fatal(err)
	}
	file, err := s.volumeFile(id)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func newSnapshot(t *testing.T, s store, volume, name string) snapshot {
	t.Helper()
	snap, err := s.createSnapshot(volume, name)
	if err != nil {
		t.Fatal(err)
	}
	return snap
}

func overwrite(t *testing.T, file string, offset int64, data []byte) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt(data, offset)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

func readAll(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestSnapshot_keepsWhatTheVolumeHad(t *testing.T) {
	t.Parallel()
	// The snapshotter's driver runs on node1, and the volume is on node2.
	s := newXFSStore(t, "node1")
	other := store{root: s.root, node: "node2"}
	file := newVolume(t, other, "v", volumeSpec{bytes: 1 << 20})
	before := bytes.Repeat([]byte("before "), 1000)
	overwrite(t, file, 4096, before)
	want := readAll(t, file)

	snap := newSnapshot(t, s, "v", "one")
	if snap.id != "v~one" || snap.volume != "v" || snap.bytes != 1<<20 || snap.created.IsZero() {
		t.Errorf("%+v", snap)
	}
	overwrite(t, file, 4096, bytes.Repeat([]byte("after  "), 1000))
	if got := readAll(t, snap.file); !bytes.Equal(got, want) {
		t.Error(wrongData + "the snapshot changes with the volume")
	}
	again := newSnapshot(t, s, "v", "one")
	if again != snap || !bytes.Equal(readAll(t, again.file), want) {
		t.Errorf(wrongData+"a second call makes another snapshot: %+v, not %+v", again, snap)
	}
	if err := other.removeVolume("v"); err != nil {
		t.Fatal(err)
	}
	restored := newVolume(t, s, "restored", volumeSpec{bytes: 1 << 20, source: snap.file})
	if err := s.removeSnapshot(snap.id); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(readAll(t, restored), want) {
		t.Error(wrongData + "the restored volume differs from the snapshot, without volume and snapshot")
	}
	if _, err := os.Stat(snap.file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file of the deleted snapshot: %v", err)
	}
}

// A clone of a large volume takes no space.
func TestSnapshot_sharesBlocks(t *testing.T) {
	t.Parallel()
	s := newXFSStore(t, "node1")
	const size = 64 << 20
	overwrite(t, newVolume(t, s, "v", volumeSpec{bytes: size}), 0, bytes.Repeat([]byte("x"), size))
	free := func() int64 {
		unix.Sync()
		var st unix.Statfs_t
		if err := unix.Statfs(s.root, &st); err != nil {
			t.Fatal(err)
		}
		return int64(st.Bfree) * st.Bsize
	}
	before := free()
	newSnapshot(t, s, "v", "one")
	if took := before - free(); took > size/8 {
		t.Errorf("the snapshot takes %d bytes", took)
	}
}

// What was written, but not synced, is in the snapshot.
func TestSnapshot_hasWhatIsInTheCaches(t *testing.T) {
	t.Parallel()
	s := newXFSStore(t, "node1")
	newVolume(t, s, "files", volumeSpec{bytes: 16 << 20, filesystem: true})
	newVolume(t, s, "device", volumeSpec{bytes: 1 << 20})
	files, _, err := s.attachVolume("files")
	if err != nil {
		t.Fatal(err)
	}
	mount := t.TempDir()
	if err := unix.Mount(files.Path, mount, "ext4", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(mount, 0); err != nil {
			t.Error(err)
		}
	})
	unsynced := []byte(strings.Repeat("not synced ", 1000))
	if err := os.WriteFile(filepath.Join(mount, "file"), unsynced, 0o600); err != nil {
		t.Fatal(err)
	}
	device, _, err := s.attachVolume("device")
	if err != nil {
		t.Fatal(err)
	}
	overwrite(t, device.Path, 4096, unsynced)
	for _, volume := range []string{"files", "device"} {
		if snap := newSnapshot(t, s, volume, "of-"+volume); !bytes.Contains(readAll(t, snap.file), unsynced) {
			t.Errorf(wrongData+"%s: the snapshot lacks what was written before it", volume)
		}
	}
}

// A name belongs to one snapshot, whatever its volume.
func TestSnapshot_namesAreUnique(t *testing.T) {
	t.Parallel()
	s := newXFSStore(t, "node1")
	newVolume(t, s, "a", volumeSpec{bytes: 4096})
	newVolume(t, s, "b", volumeSpec{bytes: 4096})
	newSnapshot(t, s, "a", "one")
	if _, err := s.createSnapshot("b", "one"); !errors.Is(err, errDiffers) {
		t.Errorf("%v", err)
	}
	if _, err := s.createSnapshot("gone", "two"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

// The volumes of the driver without snapshots are out of the other driver's reach, on the same node.
func TestSnapshot_ofAnotherDriverFails(t *testing.T) {
	t.Parallel()
	s := newXFSStore(t, "node1")
	newVolume(t, store{root: s.root, node: s.node, folder: "nosnap"}, "v", volumeSpec{bytes: 4096})
	if _, err := s.createSnapshot("v", "one"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

func TestSnapshot_rejectsForeignIDs(t *testing.T) {
	t.Parallel()
	s := store{root: t.TempDir(), node: "node1"}
	precious := filepath.Join(s.root, "precious.snap")
	if err := os.WriteFile(precious, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"", "v", "v~", "~n", "v~n~m", "v~../precious", "../precious", "v~..\x00"} {
		if _, err := s.findSnapshot(id); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q is found: %v", id, err)
		}
		if err := s.removeSnapshot(id); err != nil {
			t.Errorf("%q: %v", id, err)
		}
	}
	if _, err := os.Stat(precious); err != nil {
		t.Error(err)
	}
}

// A snapshot has its name when it is complete: what a kill in the middle has left is none, and is replaced.
func TestSnapshot_replacesRemains(t *testing.T) {
	t.Parallel()
	s := newXFSStore(t, "node1")
	want := readAll(t, newVolume(t, s, "v", volumeSpec{bytes: 8192}))
	half := filepath.Join(s.root, snapshotDir, "v~one.snap.new")
	if err := errors.Join(os.Mkdir(filepath.Dir(half), 0o700), os.WriteFile(half, []byte(strings.Repeat("x", 1<<20)), 0o600)); err != nil {
		t.Fatal(err)
	}
	if all, err := s.listSnapshots(); err != nil || len(all) != 0 {
		t.Errorf("%v, %v", all, err)
	}
	if snap := newSnapshot(t, s, "v", "one"); !bytes.Equal(readAll(t, snap.file), want) {
		t.Error(wrongData + "the snapshot is not what the volume has")
	}
	if _, err := os.Stat(half); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the remains stay: %v", err)
	}
}

// ext4Bytes returns the size that an ext4's superblock gives.
func ext4Bytes(t *testing.T, file string) int64 {
	t.Helper()
	super := readAll(t, file)[1024:2048]
	return int64(binary.LittleEndian.Uint32(super[4:])) << (10 + binary.LittleEndian.Uint32(super[24:]))
}

// The file system of a larger volume fills it, also when its journal was never replayed, as in a snapshot of a mounted one.
func TestCloneVolume_growsTheFilesystem(t *testing.T) {
	t.Parallel()
	s := newXFSStore(t, "node1")
	const small, large = 16 << 20, 48 << 20
	newVolume(t, s, "v", volumeSpec{bytes: small, filesystem: true})
	dev, _, err := s.attachVolume("v")
	if err != nil {
		t.Fatal(err)
	}
	mount := t.TempDir()
	if err := unix.Mount(dev.Path, mount, "ext4", 0, ""); err != nil {
		t.Fatal(err)
	}
	content := []byte("content of a file that was written before the snapshot")
	err = os.WriteFile(filepath.Join(mount, "file"), content, 0o600)
	snap := newSnapshot(t, s, "v", "one")
	if err := errors.Join(err, unix.Unmount(mount, 0)); err != nil {
		t.Fatal(err)
	}
	for name, spec := range map[string]volumeSpec{
		"same":             {bytes: small, filesystem: true, source: snap.file},
		"larger":           {bytes: large, filesystem: true, source: snap.file},
		"read-only":        {bytes: small, filesystem: true, source: snap.file, readOnly: true},
		"larger-read-only": {bytes: large, filesystem: true, source: snap.file, readOnly: true},
	} {
		file := newVolume(t, s, name, spec)
		if got := ext4Bytes(t, file); got != spec.bytes {
			t.Errorf("%s: the file system has %d bytes of %d", name, got, spec.bytes)
		}
		if err := mountAndRead(t, s, name, content); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := s.createVolume(t.Context(), "smaller", volumeSpec{bytes: small / 2, filesystem: true, source: snap.file}); !errors.Is(err, errTooSmall) {
		t.Errorf("smaller than its source: %v", err)
	}
}

// mountAndRead mounts a volume as the driver does, and compares its file.
func mountAndRead(t *testing.T, s store, id string, want []byte) error {
	t.Helper()
	dev, readOnly, err := s.attachVolume(id)
	if err != nil {
		return err
	}
	target := t.TempDir()
	flags := uintptr(0)
	if readOnly {
		flags = unix.MS_RDONLY
	}
	if err := unix.Mount(dev.Path, target, "ext4", flags, ""); err != nil {
		return err
	}
	got, err := os.ReadFile(filepath.Join(target, "file"))
	if err == nil && !bytes.Equal(got, want) {
		err = fmt.Errorf(wrongData+"the file has %q", got)
	}
	writeErr := os.WriteFile(filepath.Join(target, "new"), nil, 0o600)
	if readOnly != errors.Is(writeErr, unix.EROFS) {
		err = errors.Join(err, fmt.Errorf("read-only is %v, and a write says %w", readOnly, writeErr))
	}
	return errors.Join(err, unix.Unmount(target, 0))
}

// A read-only device refuses writes, not only the driver.
func TestAttachVolume_makesAReadOnlyDevice(t *testing.T) {
	t.Parallel()
	s := newXFSStore(t, "node1")
	file := newVolume(t, s, "v", volumeSpec{bytes: 8192})
	newVolume(t, s, "r", volumeSpec{bytes: 8192, source: file, readOnly: true})
	dev, readOnly, err := s.attachVolume("r")
	if err != nil || !readOnly {
		t.Fatalf("%v, %v", readOnly, err)
	}
	f, err := os.OpenFile(dev.Path, os.O_WRONLY, 0)
	if err == nil {
		_, err = f.Write(make([]byte, 512))
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if err == nil {
		t.Error("the device takes writes")
	}
}
