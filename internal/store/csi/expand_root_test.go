//go:build root

package csi_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/varvebackup/varve/internal/store/names"
	"github.com/varvebackup/varve/test/verdict"
)

// grow grows a volume. The call is made twice.
func (s *store) grow(tb testing.TB, v *csi.Volume, size int64) {
	tb.Helper()
	for range 2 {
		resp, err := s.controller.ControllerExpandVolume(tb.Context(), &csi.ControllerExpandVolumeRequest{
			VolumeId: v.GetVolumeId(), CapacityRange: &csi.CapacityRange{RequiredBytes: size},
		})
		if err != nil {
			tb.Fatal(err)
		}
		if resp.GetCapacityBytes() != size || resp.GetNodeExpansionRequired() {
			tb.Errorf("%v, want %d bytes and nothing to do on the node", resp, size)
		}
	}
	volume, replica, err := s.readObjects(tb, v.GetVolumeId())
	if err != nil {
		tb.Fatal(err)
	}
	if volume.Spec.Size != size || replica.Spec.VolumeSize != size {
		tb.Errorf("Volume has %d bytes and Replica %d, want %d", volume.Spec.Size, replica.Spec.VolumeSize, size)
	}
}

func deviceSize(tb testing.TB, path string) int64 {
	tb.Helper()
	f, err := os.Open(path)
	if err != nil {
		tb.Fatal(err)
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err := errors.Join(err, f.Close()); err != nil {
		tb.Fatal(err)
	}
	return size
}

// A Block volume grows while it is attached and while it is not, and keeps its data. Its older snapshots keep their
// size.
func TestExpand_blockVolume(t *testing.T) {
	s := newStore(t)
	v := s.mustCreate(t, "pvc-1", 8*mib, nil)
	path := s.stage(t, v, true, false)
	data := bytes.Repeat([]byte("varve"), 1000)
	writeDevice(t, path, data)
	made := s.snapshot(t, v, "snapshot-1")
	s.grow(t, v, 16*mib)
	if got := deviceSize(t, path); got != 16*mib {
		t.Errorf("the device has %d bytes", got)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err == nil {
		_, err = f.WriteAt(data, 12*mib)
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	s.restart(t)
	s.unstage(t, v)
	s.grow(t, v, 24*mib)
	path = s.stage(t, v, true, false)
	if got := deviceSize(t, path); got != 24*mib {
		t.Errorf("the device has %d bytes", got)
	}
	got := readDevice(t, path, 16*mib)
	if !bytes.Equal(got[:len(data)], data) || !bytes.Equal(got[12*mib:][:len(data)], data) {
		verdict.Errorf(t, "the volume that has grown has other bytes")
	}
	s.unstage(t, v)
	clone := s.mustClone(t, "pvc-2", 0, fromSnapshot(made))
	if clone.GetCapacityBytes() != 8*mib {
		t.Errorf("the clone of the snapshot has %d bytes", clone.GetCapacityBytes())
	}
	s.wantStart(t, clone, data)
}

// A file system grows with its volume: at once if it is mounted, and else when it is mounted next. A clone that is
// larger than its snapshot has a file system of its own size.
func TestExpand_fileSystem(t *testing.T) {
	s := newStore(t)
	v := s.mustCreate(t, "pvc-1", 64*mib, nil)
	dir := s.stage(t, v, false, false)
	mustWrite(t, filepath.Join(dir, "file"), "text")
	made := s.snapshot(t, v, "snapshot-1")
	if mayResize(t) {
		s.grow(t, v, 128*mib)
		wantFileSystem(t, dir, 100*mib)
	} else { // the kernel allows it only to those who have this capability
		_, err := s.controller.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
			VolumeId: "pvc-1", CapacityRange: &csi.CapacityRange{RequiredBytes: 128 * mib},
		})
		if !strings.Contains(fmt.Sprint(err), "end the pods that use the volume") {
			t.Errorf("without the capability to grow a mounted file system: %v", err)
		}
	}
	s.unstage(t, v)
	s.grow(t, v, 256*mib)
	wantFileSystem(t, s.stage(t, v, false, false), 200*mib)
	s.unstage(t, v)
	before := s.countMounts(t, v)
	for range 2 {
		s.stage(t, v, false, false)
		s.unstage(t, v)
	}
	if got := s.countMounts(t, v); got != before+2 { // e2fsck counts from 0
		t.Errorf("mounted %d times and then %d: a file system that has its size was checked again", before, got)
	}
	clone := s.mustClone(t, "pvc-2", 256*mib, fromSnapshot(made))
	wantFileSystem(t, s.stage(t, clone, false, false), 200*mib)
	s.unstage(t, clone)
}

// countMounts returns how often the file system of a volume that is not attached was mounted since it was checked.
func (s *store) countMounts(tb testing.TB, v *csi.Volume) uint16 {
	tb.Helper()
	lease, err := s.disk.Open(tb.Context(), names.Head(v.GetVolumeId()))
	if err != nil {
		tb.Fatal(err)
	}
	count := readDevice(tb, lease.Path(), 1024+0x36)[1024+0x34:]
	if err := lease.Close(); err != nil {
		tb.Error(err)
	}
	return binary.LittleEndian.Uint16(count)
}

// mayResize says whether this process has CAP_SYS_RESOURCE, as a privileged container has.
func mayResize(tb testing.TB) bool {
	tb.Helper()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		tb.Fatal(err)
	}
	return data[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

// wantFileSystem checks that a file system has at least a size, and the file with its text.
func wantFileSystem(tb testing.TB, dir string, least int64) {
	tb.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		tb.Fatal(err)
	}
	if got := int64(st.Blocks) * st.Bsize; got < least {
		tb.Errorf("the file system has %d bytes, want %d or more", got, least)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "file")); err != nil || string(got) != "text" {
		verdict.Errorf(tb, "the file has %q, %v", got, err)
	}
}

func TestExpand_refusesWithWords(t *testing.T) {
	s := newStore(t)
	v := s.mustCreate(t, "pvc-1", 8*mib, nil)
	for _, c := range []struct {
		r    *csi.ControllerExpandVolumeRequest
		code codes.Code
		text string
	}{
		{&csi.ControllerExpandVolumeRequest{VolumeId: "pvc-1"}, codes.InvalidArgument, "capacity_range is empty"},
		{
			&csi.ControllerExpandVolumeRequest{VolumeId: "pvc-1", CapacityRange: &csi.CapacityRange{LimitBytes: mib}},
			codes.OutOfRange, "cannot shrink",
		},
		{
			&csi.ControllerExpandVolumeRequest{VolumeId: "pvc-2", CapacityRange: &csi.CapacityRange{RequiredBytes: mib}},
			codes.NotFound, "there is no volume pvc-2",
		},
	} {
		_, err := s.controller.ControllerExpandVolume(t.Context(), c.r)
		wantCode(t, err, c.code)
		if !strings.Contains(fmt.Sprint(err), c.text) {
			t.Errorf("%v does not say %q", err, c.text)
		}
	}
	resp, err := s.controller.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
		VolumeId: v.GetVolumeId(), CapacityRange: &csi.CapacityRange{RequiredBytes: mib},
	})
	if err != nil || resp.GetCapacityBytes() != 8*mib {
		t.Errorf("a volume that is larger already: %v, %v", resp, err)
	}
	s.wantObjects(t, names.Head("pvc-1"))
}
