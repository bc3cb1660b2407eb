//go:build root

package csi_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/names"
	"github.com/varvebackup/varve/test/verdict"
)

// snapshot makes a snapshot. The call is made twice.
func (s *store) snapshot(tb testing.TB, v *csi.Volume, name string) *csi.Snapshot {
	tb.Helper()
	var made *csi.Snapshot
	for range 2 {
		resp, err := s.controller.CreateSnapshot(tb.Context(), &csi.CreateSnapshotRequest{
			Name: name, SourceVolumeId: v.GetVolumeId(),
		})
		if err != nil {
			tb.Fatal(err)
		}
		if made != nil && made.String() != resp.GetSnapshot().String() {
			tb.Errorf("the same call returned %v and then %v", made, resp.GetSnapshot())
		}
		made = resp.GetSnapshot()
	}
	if !made.GetReadyToUse() || made.GetSourceVolumeId() != v.GetVolumeId() ||
		made.GetSizeBytes() != v.GetCapacityBytes() {
		tb.Errorf("the snapshot is %v", made)
	}
	return made
}

func (s *store) deleteSnapshot(tb testing.TB, made *csi.Snapshot) error {
	tb.Helper()
	_, err := s.controller.DeleteSnapshot(tb.Context(), &csi.DeleteSnapshotRequest{SnapshotId: made.GetSnapshotId()})
	return err
}

func fromSnapshot(made *csi.Snapshot) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: made.GetSnapshotId()},
	}}
}

func fromVolume(v *csi.Volume) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
		Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: v.GetVolumeId()},
	}}
}

func (s *store) clone(tb testing.TB, name string, size int64, from *csi.VolumeContentSource) (*csi.Volume, error) {
	tb.Helper()
	resp, err := s.controller.CreateVolume(tb.Context(), &csi.CreateVolumeRequest{
		Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: size}, VolumeContentSource: from,
		VolumeCapabilities: []*csi.VolumeCapability{writer(true)},
	})
	return resp.GetVolume(), err
}

// mustClone makes a volume of a snapshot or of a volume. The call is made twice.
func (s *store) mustClone(tb testing.TB, name string, size int64, from *csi.VolumeContentSource) *csi.Volume {
	tb.Helper()
	var made *csi.Volume
	for range 2 {
		v, err := s.clone(tb, name, size, from)
		if err != nil {
			tb.Fatal(err)
		}
		made = v
	}
	return made
}

// wantStart checks the first bytes of a Block volume, which is staged for that.
func (s *store) wantStart(tb testing.TB, v *csi.Volume, want []byte) {
	tb.Helper()
	if got := readDevice(tb, s.stage(tb, v, true, false), len(want)); !bytes.Equal(got, want) {
		verdict.Errorf(tb, "volume %s has %.20q, not %.20q", v.GetVolumeId(), got, want)
	}
	s.unstage(tb, v)
}

// wantObjects checks the names of all that is on the disk.
func (s *store) wantObjects(tb testing.TB, want ...disk.Name) {
	tb.Helper()
	objects, err := s.disk.List(tb.Context())
	var got []string
	for _, o := range objects {
		got = append(got, string(o.Name))
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		tb.Errorf("on the disk: %q, %v, want %q", got, err, want)
	}
}

// overwrite writes to a device without telling it to flush.
func overwrite(tb testing.TB, path string, data []byte) {
	tb.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err == nil {
		_, err = f.Write(data)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		tb.Fatal(err)
	}
}

// A snapshot has the bytes of its moment, of an attached volume and of a detached one, also those that nobody has
// flushed. It stays when its volume goes, and a clone of it keeps it.
func TestSnapshot_keepsWhatItsVolumeHad(t *testing.T) {
	for _, kind := range []string{"xfs", "btrfs"} {
		t.Run(kind, func(t *testing.T) { checkSnapshots(t, kind) })
	}
}

func checkSnapshots(t *testing.T, kind string) {
	t.Helper()
	s := newStoreOn(t, kind)
	v := s.mustCreate(t, "pvc-1", 8*mib, nil)
	path := s.stage(t, v, true, false)
	old, now := bytes.Repeat([]byte("old "), 4096), bytes.Repeat([]byte("now "), 4096)
	overwrite(t, path, old)
	attached := s.snapshot(t, v, "snapshot-1")
	overwrite(t, path, now)
	s.restart(t)
	if got := readDevice(t, path, len(now)); !bytes.Equal(got, now) {
		verdict.Errorf(t, "the volume has other bytes after its snapshot")
	}
	s.unstage(t, v)
	detached := s.snapshot(t, v, "any other name")
	clone := s.mustClone(t, "pvc-2", 16*mib, fromSnapshot(attached))
	if clone.GetCapacityBytes() != 16*mib {
		t.Errorf("%d bytes", clone.GetCapacityBytes())
	}
	s.wantStart(t, clone, old)
	s.wantStart(t, s.mustClone(t, "pvc-3", 0, fromSnapshot(detached)), now)
	s.restart(t)
	err := s.deleteSnapshot(t, attached)
	wantCode(t, err, codes.FailedPrecondition)
	if !strings.Contains(fmt.Sprint(err), "volume/pvc-2") {
		t.Errorf("%v does not name the clone", err)
	}
	if err := s.delete(t, v); err != nil {
		t.Fatal(err)
	}
	s.wantStart(t, s.mustClone(t, "pvc-4", 8*mib, fromSnapshot(attached)), old)
	for _, handle := range []string{"pvc-2", "pvc-3", "pvc-4"} {
		if err := s.delete(t, &csi.Volume{VolumeId: handle}); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := errors.Join(s.deleteSnapshot(t, attached), s.deleteSnapshot(t, detached)); err != nil {
			t.Fatal(err)
		}
	}
	s.wantObjects(t)
	wantNoObjects(t, s)
}

// A clone of an attached volume has what was written before the call, and depends on nothing.
func TestClone_ofAttachedVolumeStandsAlone(t *testing.T) {
	s := newStore(t)
	v := s.mustCreate(t, "pvc-1", 8*mib, nil)
	path := s.stage(t, v, true, false)
	old := bytes.Repeat([]byte("old "), 4096)
	overwrite(t, path, old)
	clone := s.mustClone(t, "pvc-2", 8*mib, fromVolume(v))
	overwrite(t, path, bytes.Repeat([]byte("now "), 4096))
	s.wantObjects(t, "volume/pvc-1", "volume/pvc-2")
	s.unstage(t, v)
	if err := s.delete(t, v); err != nil {
		t.Fatal(err)
	}
	s.restart(t)
	s.wantStart(t, clone, old)
	again := s.mustClone(t, "pvc-2", 8*mib, fromVolume(v)) // what it was made of is gone
	if again.GetVolumeId() != "pvc-2" {
		t.Errorf("%v", again)
	}
	if _, err := s.clone(t, "pvc-2", 8*mib, fromVolume(clone)); status.Code(err) != codes.AlreadyExists {
		t.Errorf("the same name for a clone of something else: %v", err)
	}
}

// What a clone that was given up has left goes with the volume.
func TestClone_givenUpLeavesNothing(t *testing.T) {
	s := newStore(t)
	v := s.mustCreate(t, "pvc-1", 8*mib, nil)
	temporary, uid := names.Cloning("pvc-2")
	seal := disk.Seal{UID: uid, Kind: disk.KindSnapshot}
	if err := s.disk.Snapshot(t.Context(), names.Head("pvc-1"), temporary, seal); err != nil { // and then a crash
		t.Fatal(err)
	}
	if err := s.delete(t, &csi.Volume{VolumeId: "pvc-2"}); err != nil {
		t.Fatal(err)
	}
	s.wantObjects(t, "volume/pvc-1")
	if err := s.disk.Snapshot(t.Context(), names.Head("pvc-1"), temporary, seal); err != nil {
		t.Fatal(err)
	}
	s.mustClone(t, "pvc-2", 8*mib, fromVolume(v)) // or the call is repeated
	s.wantObjects(t, "volume/pvc-1", "volume/pvc-2")
}

// A snapshot of a mounted file system has files that nobody has flushed. Its clone can be mounted beside it.
func TestSnapshot_ofMountedFileSystem(t *testing.T) {
	s := newStore(t)
	v := s.mustCreate(t, "pvc-1", 64*mib, nil)
	dir := s.stage(t, v, false, false)
	mustWrite(t, filepath.Join(dir, "old"), "old")
	made := s.snapshot(t, v, "snapshot-1")
	mustWrite(t, filepath.Join(dir, "new"), "new")
	clone := s.mustClone(t, "pvc-2", 64*mib, fromSnapshot(made))
	there := s.stage(t, clone, false, false)
	if got, err := os.ReadFile(filepath.Join(there, "old")); err != nil || string(got) != "old" {
		verdict.Errorf(t, "the clone has %q, %v", got, err)
	}
	if _, err := os.Stat(filepath.Join(there, "new")); !errors.Is(err, os.ErrNotExist) {
		verdict.Errorf(t, "the clone has a file that is newer than its snapshot: %v", err)
	}
	s.unstage(t, clone)
	s.unstage(t, v)
}

func mustWrite(tb testing.TB, path, text string) {
	tb.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
}

// A snapshot of a volume that was never used is blank, and so is its clone, which gets a file system as any other.
func TestSnapshot_ofBlankVolume(t *testing.T) {
	s := newStore(t)
	v := s.mustCreate(t, "pvc-1", 64*mib, nil)
	clone := s.mustClone(t, "pvc-2", 64*mib, fromSnapshot(s.snapshot(t, v, "snapshot-1")))
	for _, volume := range []*csi.Volume{v, clone} {
		dir := s.stage(t, volume, false, false)
		mustWrite(t, filepath.Join(dir, "file"), "text")
		s.unstage(t, volume)
	}
}

// A clone of a snapshot counts as a clone of the image that the snapshot keeps on the disk. A clone of a volume does
// not need the image.
func TestClone_keepsImage(t *testing.T) {
	image := &longhornv1.BackingImage{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "debian"},
		Status:     longhornv1.BackingImageStatus{UUID: "uuid-debian", Size: mib},
	}
	s := newStore(t, image)
	data := bytes.Repeat([]byte("image"), mib/5)
	s.makeImage(t, "debian", "uuid-debian", data)
	v := s.mustCreate(t, "pvc-1", 2*mib, map[string]string{"backingImage": "debian"})
	made := s.snapshot(t, v, "snapshot-1")
	s.mustClone(t, "pvc-2", 2*mib, fromSnapshot(made))
	s.mustClone(t, "pvc-3", 2*mib, fromVolume(v))
	for handle, want := range map[string]string{"pvc-2": "debian", "pvc-3": ""} {
		volume, replica, err := s.readObjects(t, handle)
		if err != nil {
			t.Fatal(err)
		}
		if volume.Spec.BackingImage != want || replica.Spec.BackingImage != want || volume.Spec.DataSource == "" {
			t.Errorf("%s: %+v, %+v, want image %q", handle, volume.Spec, replica.Spec, want)
		}
	}
	if err := errors.Join(s.delete(t, v), s.delete(t, &csi.Volume{VolumeId: "pvc-2"})); err != nil {
		t.Fatal(err)
	}
	if err := s.disk.Delete(t.Context(), names.Image("debian", "uuid-debian")); err == nil {
		t.Error("the image was deleted, which a snapshot was made of")
	}
	if err := s.deleteSnapshot(t, made); err != nil {
		t.Fatal(err)
	}
	if err := s.disk.Delete(t.Context(), names.Image("debian", "uuid-debian")); err != nil {
		t.Error(err)
	}
	s.wantStart(t, &csi.Volume{VolumeId: "pvc-3"}, data[:1000])
}

// What cannot be cloned says where it is.
func TestClone_refusesWithWords(t *testing.T) {
	other := &longhornv1.Node{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "node2"},
		Status:     longhornv1.NodeStatus{DiskStatus: map[string]*longhornv1.DiskStatus{"d": {DiskUUID: "disk-2"}}},
	}
	there := &longhornv1.Replica{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "pvc-9"}, Spec: longhornv1.ReplicaSpec{NodeID: "node2"},
	}
	s := newStore(t, other, there)
	v := s.mustCreate(t, "pvc-1", 8*mib, nil)
	for _, c := range []struct {
		from *csi.VolumeContentSource
		size int64
		code codes.Code
		text string
	}{
		{fromSnapshot(&csi.Snapshot{SnapshotId: "disk-2/snapshot-1"}), 0, codes.ResourceExhausted, "on node node2: use it there"},
		{fromVolume(&csi.Volume{VolumeId: "pvc-9"}), 0, codes.ResourceExhausted, "on node node2: use it there"},
		{fromSnapshot(&csi.Snapshot{SnapshotId: "disk-3/snapshot-1"}), 0, codes.Unavailable, "disk-3 is not open"},
		{fromSnapshot(&csi.Snapshot{SnapshotId: diskUUID + "/snapshot-1"}), 0, codes.NotFound, "does not have the snapshot"},
		{fromVolume(v), mib, codes.OutOfRange, "it is made of 8388608 bytes"},
	} {
		_, err := s.clone(t, "pvc-2", c.size, c.from)
		if status.Code(err) != c.code || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%v: %v, want %s with %q", c.from, err, c.code, c.text)
		}
	}
	s.wantObjects(t, "volume/pvc-1")
}
