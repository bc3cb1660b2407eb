//go:build root

package csi_test

import (
	"bytes"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/varvebackup/varve/internal/errclass"
	driver "github.com/varvebackup/varve/internal/store/csi"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/names"
	"github.com/varvebackup/varve/test/verdict"
)

// readerOf returns the volume from which an image of the disk is read for a backup. No two tests have one of the same
// UID: a device is found by the name of its volume, too.
func readerOf(backup, image string, uuid disk.UID) *csi.Volume {
	return &csi.Volume{VolumeId: names.ReaderHandle(backup), VolumeContext: map[string]string{
		names.ContextDisk: diskUUID, names.ContextImage: image, names.ContextImageUUID: string(uuid),
	}}
}

// hasReader says whether the disk has the clone for the backup with a UID.
func (s *store) hasReader(t *testing.T, uid string) bool {
	t.Helper()
	objects, err := s.disk.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		if o.Name == disk.Name("backup/"+uid) {
			return true
		}
	}
	return false
}

// An image of any number of bytes is read to its end, and cannot be deleted meanwhile. What a crash has left of another
// reading goes by itself.
func TestReader_hasTheWholeImage(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	data := bytes.Repeat([]byte("varve.."), 1_000_001/7+1)[:1_000_001]
	s.makeImage(t, "golden", "u1", data)
	v := readerOf("b1", "golden", "u1")
	device := s.stage(t, v, true, true)
	got, err := os.ReadFile(device)
	if err != nil {
		t.Fatal(err)
	}
	if want := append(bytes.Clone(data), make([]byte, 447)...); !bytes.Equal(got, want) {
		verdict.Errorf(t, "the device has %d bytes, and not those of the image", len(got))
	}
	if err := s.disk.Delete(t.Context(), names.Image("golden", "u1")); !errors.Is(err, errclass.Conflict) {
		t.Errorf("the image was deleted while it was read: %v", err)
	}
	sweeps := clocktesting.NewFakeClock(time.Now())
	s.clock = sweeps
	s.restart(t)
	err = s.disk.Create(t.Context(), "backup/b2", disk.Source{
		UID: "image-b2", Volume: "image-b2", From: names.Image("golden", "u1"), Bytes: 1 << 20,
	})
	if err != nil { // what a crash leaves
		t.Fatal(err)
	}
	eventually(t, func() string {
		sweeps.Step(time.Minute)
		if s.hasReader(t, "b2") {
			return "the clone that a crash has left is there"
		}
		return ""
	})
	if !s.hasReader(t, "b1") {
		t.Error("a clone was removed that is attached")
	}
	s.unstage(t, v)
	if s.hasReader(t, "b1") {
		t.Error("the clone is left")
	}
	if err := s.disk.Delete(t.Context(), names.Image("golden", "u1")); err != nil {
		t.Error(err)
	}
}

// The clone goes also if its device was detached by somebody else, and no call tells: the image could not be deleted
// until the store restarts.
func TestReader_goesWithItsDevice(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.makeImage(t, "golden", "u1", make([]byte, 1<<20))
	v := readerOf("b3", "golden", "u1")
	s.stage(t, v, true, true)
	if err := driver.SweepReaders(s.driver, t.Context()); err != nil || !s.hasReader(t, "b3") {
		t.Fatalf("a clone was removed that is attached, or %v", err)
	}
	device, err := devices.FindName(v.GetVolumeId())
	if err == nil {
		err = devices.Detach(t.Context(), device)
	}
	if err == nil {
		err = driver.SweepReaders(s.driver, t.Context())
	}
	if err != nil || s.hasReader(t, "b3") {
		t.Fatalf("the clone is there, or %v", err)
	}
	s.unstage(t, v)
	if err := s.disk.Delete(t.Context(), names.Image("golden", "u1")); err != nil {
		t.Error(err)
	}
}

func TestReader_refuses(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.makeImage(t, "golden", "u1", make([]byte, 4096))
	for name, c := range map[string]struct {
		volume *csi.Volume
		block  bool
		code   codes.Code
	}{
		"a file system":      {readerOf("b4", "golden", "u1"), false, codes.InvalidArgument},
		"another image":      {readerOf("b4", "other", "u1"), true, codes.NotFound},
		"an image of before": {readerOf("b4", "golden", "u0"), true, codes.NotFound},
	} {
		_, err := s.node.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{
			VolumeId: c.volume.GetVolumeId(), StagingTargetPath: s.path("staging", c.volume), VolumeCapability: writer(c.block),
			VolumeContext: c.volume.GetVolumeContext(),
		})
		if status.Code(err) != c.code {
			t.Errorf("%s: %v", name, err)
		}
	}
	if s.hasReader(t, "b4") {
		t.Error("a clone is left")
	}
	v := readerOf("b4", "golden", "u1")
	s.stage(t, v, true, true)
	_, err := s.controller.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{
		Name: "snapshot-1", SourceVolumeId: v.GetVolumeId(),
	})
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("a snapshot of it: %v", err)
	}
	s.unstage(t, v)
}
