//go:build root

package csi_test

import (
	"bytes"
	"context"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubernetesfake "k8s.io/client-go/kubernetes/fake"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/errclass"
	driver "github.com/varvebackup/varve/internal/store/csi"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/diskset"
	"github.com/varvebackup/varve/internal/store/loop"
	"github.com/varvebackup/varve/internal/store/names"
	"github.com/varvebackup/varve/internal/store/reflink"
	testloop "github.com/varvebackup/varve/test/loop"
	"github.com/varvebackup/varve/test/verdict"
)

const namespace = "varve"

var devices = loop.Devices{Dir: "/dev", Clock: clock.RealClock{}}

// store is a node with a disk and a driver.
type store struct {
	dir        string // kubelet's, and of mounts
	fs         *testloop.FileSystem
	client     client.Client
	kubernetes *kubernetesfake.Clientset
	// withoutDisk says that the agent cannot open the disk.
	withoutDisk bool
	clock       clock.WithTicker // the real one if it is nil
	hostRoot    string

	disk       *reflink.Disk
	controller csi.ControllerClient
	node       csi.NodeClient
	driver     *driver.Driver
	stop       func(tb testing.TB)
}

// newStore starts a driver with a disk on XFS until the test ends.
func newStore(tb testing.TB, objects ...client.Object) *store {
	tb.Helper()
	return newStoreOn(tb, "xfs", objects...)
}

// newStoreOn starts a driver with a disk on a file system until the test ends.
func newStoreOn(tb testing.TB, kind string, objects ...client.Object) *store {
	tb.Helper()
	dir, err := os.MkdirTemp("", "varve-csi") // the path of a socket must be short
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			tb.Error(err)
		}
	})
	scheme := runtime.NewScheme()
	if err := errors.Join(longhornv1.AddToScheme(scheme), clientscheme.AddToScheme(scheme)); err != nil {
		tb.Fatal(err)
	}
	objects = append(objects, &longhornv1.Node{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: nodeName},
		Spec: longhornv1.NodeSpec{AllowScheduling: true, Disks: map[string]longhornv1.DiskSpec{
			"default-disk": {Path: "/disk", AllowScheduling: true},
		}},
	})
	s := &store{
		dir: dir, fs: testloop.NewFileSystem(tb, kind), kubernetes: kubernetesfake.NewClientset(),
		client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
			WithStatusSubresource(&longhornv1.Volume{}, &longhornv1.Replica{}, &longhornv1.BackingImage{}).Build(),
	}
	if err := reflink.Format(s.fs.Dir, diskUUID); err != nil {
		tb.Fatal(err)
	}
	s.start(tb)
	tb.Cleanup(func() {
		s.stop(tb)
		s.removeMounts(tb)
	})
	return s
}

// removeMounts removes what a test that failed has left.
func (s *store) removeMounts(tb testing.TB) {
	tb.Helper()
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(s.dir))
	for _, m := range mounts {
		err = errors.Join(err, unix.Unmount(m.Mountpoint, unix.MNT_DETACH))
	}
	left, belowErr := devices.Below(s.fs.Dir)
	err = errors.Join(err, belowErr)
	for _, device := range left {
		err = errors.Join(err, devices.Detach(context.WithoutCancel(tb.Context()), device))
	}
	if err != nil || len(mounts)+len(left) > 0 && !tb.Failed() {
		tb.Errorf("left: %d mounts, %d devices: %v", len(mounts), len(left), err)
	}
}

// start opens the disk and runs the driver.
func (s *store) start(tb testing.TB) {
	tb.Helper()
	var err error
	if s.disk, err = reflink.Open(tb.Context(), s.fs.Dir, reflink.Options{}); err != nil {
		tb.Fatal(err)
	}
	s.runDriver(tb)
	stop := s.stop
	s.stop = func(tb testing.TB) {
		tb.Helper()
		stop(tb)
		if err := s.disk.Close(); err != nil {
			tb.Error(err)
		}
	}
}

// runDriver runs the driver with the disk, unless the agent could not open it.
func (s *store) runDriver(tb testing.TB) {
	tb.Helper()
	disks := &diskset.Set{}
	ctx, cancel := context.WithCancel(context.WithoutCancel(tb.Context()))
	o := driver.Options{
		Node: nodeName, Namespace: namespace, Disks: disks, Client: s.client, Kubernetes: s.kubernetes, KubeletDir: s.dir,
		Clock: s.clock, HostRoot: s.hostRoot,
		Logger: slog.New(slog.NewTextHandler(tb.Output(), nil)),
	}
	_ = os.Remove(o.Socket())
	done := make(chan error, 1)
	d := driver.New(o)
	s.driver = d
	go func() { done <- d.Run(ctx) }()
	connection, err := grpc.NewClient("unix://"+o.Socket(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		tb.Fatal(err)
	}
	s.controller, s.node = csi.NewControllerClient(connection), csi.NewNodeClient(connection)
	if _, err := csi.NewIdentityClient(connection).Probe(ctx, &csi.ProbeRequest{}); err != nil {
		tb.Fatal(err)
	}
	if !s.withoutDisk {
		opened := diskset.Disk{Disk: s.disk, Name: "default-disk", UUID: diskUUID, Path: s.fs.Dir}
		if err := d.LeaseAttached(tb.Context(), opened); err != nil {
			tb.Fatal(err)
		}
		disks.Put(opened)
	}
	s.stop = func(tb testing.TB) {
		tb.Helper()
		_ = connection.Close()
		cancel()
		if err := <-done; err != nil {
			tb.Errorf("the driver ended: %v", err)
		}
	}
}

func (s *store) restart(tb testing.TB) {
	tb.Helper()
	s.stop(tb)
	s.start(tb)
}

// writer is how a volume is used.
func writer(block bool) *csi.VolumeCapability {
	c := &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
	}
	if block {
		c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	}
	return c
}

func (s *store) create(tb testing.TB, name string, bytes int64, parameters map[string]string) (*csi.Volume, error) {
	tb.Helper()
	created, err := s.controller.CreateVolume(tb.Context(), &csi.CreateVolumeRequest{
		Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: bytes}, Parameters: parameters,
		VolumeCapabilities: []*csi.VolumeCapability{writer(true)},
	})
	return created.GetVolume(), err
}

// mustCreate makes a volume.
func (s *store) mustCreate(tb testing.TB, name string, bytes int64, parameters map[string]string) *csi.Volume {
	tb.Helper()
	v, err := s.create(tb, name, bytes, parameters)
	if err != nil {
		tb.Fatal(err)
	}
	return v
}

// path returns a path for a volume.
func (s *store) path(kind string, v *csi.Volume) string {
	return filepath.Join(s.dir, kind, v.GetVolumeId())
}

// stage stages and publishes a volume, and returns where it is published. Each call is made twice.
func (s *store) stage(tb testing.TB, v *csi.Volume, block, readOnly bool) string {
	tb.Helper()
	for range 2 {
		if _, err := s.node.NodeStageVolume(tb.Context(), &csi.NodeStageVolumeRequest{
			VolumeId: v.GetVolumeId(), StagingTargetPath: s.path("staging", v), VolumeCapability: writer(block),
			VolumeContext: v.GetVolumeContext(),
		}); err != nil {
			tb.Fatal(err)
		}
	}
	for range 2 {
		if _, err := s.node.NodePublishVolume(tb.Context(), &csi.NodePublishVolumeRequest{
			VolumeId: v.GetVolumeId(), StagingTargetPath: s.path("staging", v), TargetPath: s.path("pod", v),
			VolumeCapability: writer(block),
			VolumeContext:    v.GetVolumeContext(), Readonly: readOnly,
		}); err != nil {
			tb.Fatal(err)
		}
	}
	return s.path("pod", v)
}

// unstage unpublishes and unstages a volume. Each call is made twice, and again while a sweep works on the volume.
func (s *store) unstage(tb testing.TB, v *csi.Volume) {
	tb.Helper()
	repeat := func(call func() error) {
		for range 2 {
			eventually(tb, func() string {
				err := call()
				if status.Code(err) == codes.Aborted {
					return err.Error()
				}
				if err != nil {
					tb.Fatal(err)
				}
				return ""
			})
		}
	}
	repeat(func() error {
		_, err := s.node.NodeUnpublishVolume(tb.Context(), &csi.NodeUnpublishVolumeRequest{
			VolumeId: v.GetVolumeId(), TargetPath: s.path("pod", v),
		})
		return err
	})
	repeat(func() error {
		_, err := s.node.NodeUnstageVolume(tb.Context(), &csi.NodeUnstageVolumeRequest{
			VolumeId: v.GetVolumeId(), StagingTargetPath: s.path("staging", v),
		})
		return err
	})
}

func (s *store) delete(tb testing.TB, v *csi.Volume) error {
	tb.Helper()
	_, err := s.controller.DeleteVolume(tb.Context(), &csi.DeleteVolumeRequest{VolumeId: v.GetVolumeId()})
	return err
}

// makeImage seals an image on the disk, and returns its checksum.
func (s *store) makeImage(tb testing.TB, name string, uuid disk.UID, data []byte) {
	tb.Helper()
	head := names.SourceHead(string(uuid))
	bytes := int64(len(data))
	err := s.disk.Create(tb.Context(), head, disk.Source{UID: "source-" + uuid, Volume: uuid, Bytes: bytes})
	if err != nil {
		tb.Fatal(err)
	}
	lease, err := s.disk.Open(tb.Context(), head)
	if err == nil {
		err = errors.Join(os.WriteFile(lease.Path(), data, 0o600), lease.Close())
	}
	sum := sha512.Sum512(data)
	if err == nil {
		err = s.disk.Snapshot(tb.Context(), head, names.Image(name, string(uuid)), disk.Seal{
			UID: uuid, Kind: disk.KindImage,
			Checksum: hex.EncodeToString(sum[:]),
		})
	}
	if err == nil {
		err = s.disk.Delete(tb.Context(), head)
	}
	if err != nil {
		tb.Fatal(err)
	}
}

// readObjects returns the Volume and the Replica of a volume.
func (s *store) readObjects(tb testing.TB, handle string) (*longhornv1.Volume, *longhornv1.Replica, error) {
	tb.Helper()
	volume, replica := &longhornv1.Volume{}, &longhornv1.Replica{}
	key := client.ObjectKey{Namespace: namespace, Name: handle}
	return volume, replica, errors.Join(s.client.Get(tb.Context(), key, volume), s.client.Get(tb.Context(), key, replica))
}

// wantStatus waits until Volume and Replica have states.
func (s *store) wantStatus(tb testing.TB, v *csi.Volume, state, robustness, replicaState string) {
	tb.Helper()
	eventually(tb, func() string {
		volume, replica, err := s.readObjects(tb, v.GetVolumeId())
		if err != nil {
			return err.Error()
		}
		got := []string{volume.Status.State, volume.Status.Robustness, replica.Status.CurrentState}
		if got[0] != state || got[1] != robustness || got[2] != replicaState {
			return "the states are " + got[0] + ", " + got[1] + ", " + got[2] + ": " + replica.Status.Message
		}
		return ""
	})
}

// eventually waits until a check has nothing to complain about.
func eventually(tb testing.TB, check func() string) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), 20*time.Second)
	defer cancel()
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	for {
		complaint := check()
		if complaint == "" {
			return
		}
		select {
		case <-ctx.Done():
			tb.Fatal(complaint)
		case <-poll.C:
		}
	}
}

func wantCode(tb testing.TB, err error, code codes.Code) {
	tb.Helper()
	if status.Code(err) != code {
		tb.Errorf("%v, want code %s", err, code)
	}
}

// writeDevice writes at the start of a device, and readDevice reads it.
func writeDevice(tb testing.TB, path string, data []byte) {
	tb.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err == nil {
		_, err = f.Write(data)
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if err != nil {
		tb.Fatal(err)
	}
}

func readDevice(tb testing.TB, path string, n int) []byte {
	tb.Helper()
	f, err := os.Open(path)
	if err != nil {
		tb.Fatal(err)
	}
	data := make([]byte, n)
	_, err = f.ReadAt(data, 0)
	if err = errors.Join(err, f.Close()); err != nil {
		tb.Fatal(err)
	}
	return data
}

// wantSectors checks the size of a device's sectors.
func wantSectors(tb testing.TB, device string, want int) {
	tb.Helper()
	f, err := os.Open(device)
	if err != nil {
		tb.Fatal(err)
	}
	got, err := unix.IoctlGetInt(int(f.Fd()), unix.BLKSSZGET)
	if err := errors.Join(err, f.Close()); got != want || err != nil {
		tb.Errorf("%s has sectors of %d bytes, %v, want %d", device, got, err, want)
	}
}

// A Block volume keeps its data while the driver restarts, attached or not, and is not deleted while it is attached.
func TestNode_blockVolumeSurvivesRestarts(t *testing.T) {
	for _, kind := range []string{"xfs", "btrfs"} {
		t.Run(kind, func(t *testing.T) { checkBlockVolume(t, kind) })
	}
}

func checkBlockVolume(t *testing.T, kind string) {
	t.Helper()
	s := newStoreOn(t, kind)
	v := s.mustCreate(t, "pvc-1", 8*mib+1, nil)
	if v.GetCapacityBytes() != 8*mib+4096 {
		t.Errorf("%d bytes", v.GetCapacityBytes())
	}
	s.wantStatus(t, v, longhornv1.VolumeDetached, longhornv1.RobustnessHealthy, longhornv1.ReplicaStopped)
	path := s.stage(t, v, true, false)
	s.wantStatus(t, v, longhornv1.VolumeAttached, longhornv1.RobustnessHealthy, longhornv1.ReplicaRunning)
	wantSectors(t, path, loop.BlockSector)
	want := bytes.Repeat([]byte("varve"), 1000)
	writeDevice(t, path, want)
	s.restart(t)
	if err := s.disk.Delete(t.Context(), names.Head("pvc-1")); err == nil {
		t.Fatal("the head of an attached volume was deleted after the restart")
	}
	wantCode(t, s.delete(t, v), codes.FailedPrecondition)
	if got := readDevice(t, path, len(want)); !bytes.Equal(got, want) {
		verdict.Errorf(t, "the data of the volume changed")
	}
	s.unstage(t, v)
	s.wantStatus(t, v, longhornv1.VolumeDetached, longhornv1.RobustnessHealthy, longhornv1.ReplicaStopped)
	s.restart(t)
	if got := readDevice(t, s.stage(t, v, true, false), len(want)); !bytes.Equal(got, want) {
		verdict.Errorf(t, "the data of the volume changed")
	}
	s.unstage(t, v)
	for range 2 {
		if err := s.delete(t, v); err != nil {
			t.Fatal(err)
		}
	}
	if objects, err := s.disk.List(t.Context()); err != nil || len(objects) != 0 {
		t.Errorf("left on the disk: %v, %v", objects, err)
	}
	wantNoObjects(t, s)
}

// A volume is unstaged whose disk is not open, and its lease ends with that.
func TestNode_unstagesWithoutADisk(t *testing.T) {
	s := newStore(t)
	v := s.mustCreate(t, "pvc-unstaged-without-a-disk", mib, nil)
	s.stage(t, v, true, false)
	s.wantStatus(t, v, longhornv1.VolumeAttached, longhornv1.RobustnessHealthy, longhornv1.ReplicaRunning)
	s.stop(t)
	s.withoutDisk = true
	fakeClock := clocktesting.NewFakeClock(time.Now())
	s.clock = fakeClock
	s.start(t)
	wait := func() string {
		if fakeClock.HasWaiters() {
			return ""
		}
		return "the driver does not look at its volumes from time to time"
	}
	eventually(t, wait)
	fakeClock.Step(time.Minute)
	s.wantStatus(t, v, longhornv1.VolumeAttached, longhornv1.RobustnessUnknown, longhornv1.ReplicaRunning)
	s.unstage(t, v)
	wantCode(t, s.delete(t, v), codes.Unavailable)
	s.withoutDisk = false
	s.restart(t)
	if err := s.delete(t, v); err != nil {
		t.Error(err)
	}
}

// Kubelet is told where the driver serves, and which node is its own.
func TestRun_registersWithKubelet(t *testing.T) {
	s := newStore(t)
	socket := filepath.Join(s.dir, "plugins_registry", names.Driver+"-reg.sock")
	connection, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	kubelet := registration.NewRegistrationClient(connection)
	got, err := kubelet.GetInfo(t.Context(), &registration.InfoRequest{})
	if err != nil {
		t.Fatal(err)
	}
	const unregistered = "kubelet has not yet registered the CSI driver"
	if err := s.driver.Ready(); err == nil || !strings.Contains(err.Error(), unregistered) {
		t.Errorf("ready before kubelet has registered the driver: %v", err)
	}
	for _, answer := range []*registration.RegistrationStatus{
		{Error: "unknown version"}, {PluginRegistered: true}, {Error: "node not found"},
	} {
		if _, err := kubelet.NotifyRegistrationStatus(t.Context(), answer); err != nil {
			t.Fatal(err)
		}
		err := s.driver.Ready()
		if answer.GetPluginRegistered() != (err == nil) || err != nil && !strings.Contains(err.Error(), answer.GetError()) {
			t.Errorf("ready after %v: %v", answer, err)
		}
	}
	o := driver.Options{KubeletDir: s.dir}
	if got.GetType() != registration.CSIPlugin || got.GetName() != names.Driver || got.GetEndpoint() != o.Socket() {
		t.Errorf("%v", got)
	}
	info, err := s.node.NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{})
	if err != nil || info.GetNodeId() != nodeName || info.GetMaxVolumesPerNode() != 0 ||
		info.GetAccessibleTopology().GetSegments()[names.TopologyNode] != nodeName {
		t.Errorf("%v, %v", info, err)
	}
}

func wantNoObjects(tb testing.TB, s *store) {
	tb.Helper()
	var volumes longhornv1.VolumeList
	var replicas longhornv1.ReplicaList
	if err := errors.Join(s.client.List(tb.Context(), &volumes), s.client.List(tb.Context(), &replicas)); err != nil ||
		len(volumes.Items)+len(replicas.Items) != 0 {
		tb.Errorf("left in the API: %v, %v, %v", volumes.Items, replicas.Items, err)
	}
}

// A Filesystem volume is formatted once, keeps its files, and can be published read-only.
func TestNode_filesystemVolumeKeepsItsFiles(t *testing.T) {
	s := newStore(t)
	v := s.mustCreate(t, "pvc-1", 32*mib, nil)
	path := s.stage(t, v, false, false)
	if err := os.WriteFile(filepath.Join(path, "file"), []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	lease, err := s.disk.Open(t.Context(), names.Head("pvc-1"))
	if err != nil {
		t.Fatal(err)
	}
	device, err := devices.Find(lease.Path())
	if err := errors.Join(err, lease.Close()); err != nil {
		t.Fatal(err)
	}
	wantSectors(t, device.Path, loop.SmallSector)
	stats, err := s.node.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{
		VolumeId:   "pvc-1",
		VolumePath: path,
	})
	if err != nil || len(stats.GetUsage()) != 2 || stats.GetUsage()[0].GetUsed() == 0 {
		t.Errorf("%v, %v", stats, err)
	}
	s.restart(t)
	s.unstage(t, v)
	path = s.stage(t, v, false, true)
	if data, err := os.ReadFile(filepath.Join(path, "file")); err != nil || string(data) != "text" {
		t.Errorf("%q, %v", data, err)
	}
	if err := os.WriteFile(filepath.Join(path, "file"), nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("a volume that is published read-only was written: %v", err)
	}
	s.unstage(t, v)
	if err := s.delete(t, v); err != nil {
		t.Fatal(err)
	}
}

// What has any data at all is never formatted.
func TestNode_formatsNothingThatHasData(t *testing.T) {
	s := newStore(t)
	v := s.mustCreate(t, "pvc-1", 32*mib, nil)
	path := s.stage(t, v, true, false)
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteAt([]byte("x"), 20*mib)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	s.unstage(t, v)
	_, err = s.node.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{
		VolumeId: "pvc-1", StagingTargetPath: s.path("staging", v), VolumeCapability: writer(false),
	})
	if err == nil {
		t.Fatal("a volume with data was mounted")
	}
	s.unstage(t, v)
	got := readDevice(t, s.stage(t, v, true, false), 32*mib)
	s.unstage(t, v)
	got[20*mib] -= 'x'
	if !bytes.Equal(got, make([]byte, 32*mib)) {
		verdict.Errorf(t, "the volume was written")
	}
}

// A mkfs that fails in the middle leaves a blank volume, so that the next one can succeed: here the node's, because the
// process has none.
func TestNode_removesHalfAFileSystem(t *testing.T) {
	s := newStore(t)
	s.hostRoot = "/"
	s.restart(t)
	v := s.mustCreate(t, "pvc-half-formatted", 32*mib, nil)
	bin := t.TempDir()
	script := "#!/bin/sh\nfor device; do :; done\nprintf half >\"$device\"\necho disk error >&2\nexit 1\n"
	if err := os.WriteFile(filepath.Join(bin, "mkfs.ext4"), []byte(script),
		0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	t.Setenv("PATH", bin)
	_, err := s.node.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{
		VolumeId: v.GetVolumeId(), StagingTargetPath: s.path("staging", v), VolumeCapability: writer(false),
	})
	if err == nil || !strings.Contains(err.Error(), "disk error") {
		t.Fatalf("%v, want what mkfs.ext4 said", err)
	}
	t.Setenv("PATH", t.TempDir())
	path := s.stage(t, v, false, false)
	if err := os.WriteFile(filepath.Join(path, "file"), []byte("text"), 0o600); err != nil {
		t.Error(err)
	}
	s.unstage(t, v)
}

// A driver that is killed while mkfs runs leaves half a file system, which the next one discards. What a pod has written
// to the volume since then is never discarded.
func TestNode_discardsWhatACrashLeftOfAFileSystem(t *testing.T) {
	for name, block := range map[string]bool{"used as a file system": false, "used as a device": true} {
		t.Run(name, func(t *testing.T) { checkCrashedFormat(t, block) })
	}
}

func checkCrashedFormat(t *testing.T, block bool) {
	t.Helper()
	s := newStore(t)
	v := s.mustCreate(t, "pvc-crashed-format", 32*mib, nil)
	notes, saved, bin := filepath.Join(s.dir, "plugins", names.Driver, "formatting"), t.TempDir(), t.TempDir()
	path := os.Getenv("PATH")
	script := "#!/bin/sh\nPATH=" + path + "\ncp " + notes + "/* " + saved + "\nexit 1\n"
	if err := os.WriteFile(filepath.Join(bin, "mkfs.ext4"), []byte(script),
		0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	t.Setenv("PATH", bin)
	stage := &csi.NodeStageVolumeRequest{
		VolumeId: v.GetVolumeId(), StagingTargetPath: s.path("staging", v), VolumeCapability: writer(false),
	}
	if _, err := s.node.NodeStageVolume(t.Context(), stage); err == nil {
		t.Fatal("a mkfs that failed is no error")
	}
	if left, err := os.ReadDir(notes); err != nil || len(left) != 0 {
		t.Errorf("notes of what failed, and was discarded: %v, %v", left, err)
	}
	t.Setenv("PATH", path)
	s.unstage(t, v)
	// The state in which a crash would have left the volume.
	crash := func() {
		if err := os.CopyFS(notes, os.DirFS(saved)); err != nil {
			t.Fatal(err)
		}
		lease, err := s.disk.Open(t.Context(), names.Head(v.GetVolumeId()))
		if err != nil {
			t.Fatal(err)
		}
		writeDevice(t, lease.Path(), []byte("half a file system"))
		if err := lease.Close(); err != nil {
			t.Error(err)
		}
	}
	crash()
	s.restart(t)
	if block {
		s.stage(t, v, true, false)
		s.unstage(t, v)
		if _, err := s.node.NodeStageVolume(t.Context(), stage); err == nil {
			t.Error("a device with data was formatted")
		}
		s.unstage(t, v)
	} else {
		file := filepath.Join(s.stage(t, v, false, false), "file")
		if err := os.WriteFile(file, []byte("text"), 0o600); err != nil {
			t.Fatal(err)
		}
		s.unstage(t, v)
		s.stage(t, v, false, false)
		if got, err := os.ReadFile(file); err != nil || string(got) != "text" {
			t.Errorf("%q, %v", got, err)
		}
		s.unstage(t, v)
		crash()
	}
	if err := s.delete(t, v); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(notes); err != nil || len(left) != 0 {
		t.Errorf("notes of a volume that is deleted: %v, %v", left, err)
	}
}

// A volume of an image has its bytes, and waits for the copy.
func TestCreateVolume_clonesAnImage(t *testing.T) {
	image := &longhornv1.BackingImage{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "ubuntu-22.04"},
		Status: longhornv1.BackingImageStatus{
			UUID: "u1", Size: 3*mib + 77,
			DiskFileStatusMap: map[string]*longhornv1.BackingImageDiskFileStatus{
				diskUUID: {State: longhornv1.StateInProgress, Progress: 42, Message: "from node2"},
			},
		},
	}
	s := newStore(t, image)
	parameters := map[string]string{"dataEngine": "v2", "numberOfReplicas": "1", "backingImage": image.Name}
	_, err := s.create(t, "pvc-1", 3*mib, parameters)
	wantCode(t, err, codes.OutOfRange)
	_, err = s.create(t, "pvc-1", 4*mib, map[string]string{"backingImage": "missing"})
	wantCode(t, err, codes.NotFound)
	wantNoObjects(t, s)
	_, err = s.create(t, "pvc-1", 4*mib, parameters)
	wantCode(t, err, codes.Unavailable)
	for _, part := range []string{"in-progress (42 %): from node2", "default-disk", "ubuntu-22.04"} {
		if !bytes.Contains([]byte(status.Convert(err).Message()), []byte(part)) {
			t.Errorf("%v lacks %q", err, part)
		}
	}
	s.wantStatus(t, &csi.Volume{VolumeId: "pvc-1"}, longhornv1.VolumeCreating, longhornv1.RobustnessUnknown,
		longhornv1.ReplicaStarting)

	want := bytes.Repeat([]byte("0123456789abcdef"), 3*mib/16+5)[:3*mib+77]
	s.makeImage(t, image.Name, "another-image-of-that-name", want)
	_, err = s.create(t, "pvc-1", 4*mib, parameters)
	wantCode(t, err, codes.Unavailable)
	s.makeImage(t, image.Name, "u1", want) // beside the other one
	var v *csi.Volume
	for range 2 {
		v = s.mustCreate(t, "pvc-1", 4*mib, parameters)
	}
	_, err = s.create(t, "pvc-1", 5*mib, parameters)
	wantCode(t, err, codes.AlreadyExists)
	got := readDevice(t, s.stage(t, v, true, false), 4*mib)
	s.unstage(t, v)
	if !bytes.Equal(got, append(want, make([]byte, mib-77)...)) {
		verdict.Errorf(t, "the volume does not have the image's bytes")
	}
	if err := s.delete(t, v); err != nil {
		t.Fatal(err)
	}
}

// A disk without room for the image is not chosen, and the scheduler is asked for another node.
func TestCreateVolume_needsRoomForTheImage(t *testing.T) {
	image := &longhornv1.BackingImage{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "large"},
		Status:     longhornv1.BackingImageStatus{UUID: "u1", Size: mib, RealSize: 1 << 40},
	}
	s := newStore(t, image)
	_, err := s.create(t, "pvc-1", mib, map[string]string{"backingImage": image.Name})
	wantCode(t, err, codes.ResourceExhausted)
	wantNoObjects(t, s)
}

// What a crash leaves before the volume's PersistentVolume is made goes with the claim, which the Volume names from the
// beginning. What somebody has written stays.
func TestSweepVolumes_deletesWhatWasNeverWritten(t *testing.T) {
	image := &longhornv1.BackingImage{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "ubuntu"},
		Status:     longhornv1.BackingImageStatus{UUID: "u1", Size: 3 * mib},
	}
	s := newStore(t, image)
	s.makeImage(t, image.Name, "u1", bytes.Repeat([]byte("varve"), 3*mib/5+1)[:3*mib])
	claim := map[string]string{
		"csi.storage.k8s.io/pvc/name": "gone", "csi.storage.k8s.io/pvc/namespace": "default", "backingImage": "ubuntu",
	}
	s.mustCreate(t, "pvc-unwritten", 4*mib, claim)
	written := s.mustCreate(t, "pvc-written", 4*mib, claim)
	writeDevice(t, s.stage(t, written, true, false), []byte("data"))
	s.unstage(t, written)
	volume := &longhornv1.Volume{}
	key := client.ObjectKey{Namespace: namespace, Name: "pvc-unwritten"}
	if err := s.client.Get(t.Context(), key, volume); err != nil {
		t.Fatal(err)
	}
	if got := volume.Annotations["store.varvebackup.io/claim"]; got != "default/gone" {
		t.Errorf("the Volume names the claim %q", got)
	}
	fakeClock := clocktesting.NewFakeClock(time.Now())
	s.clock = fakeClock
	s.restart(t)
	eventually(t, func() string {
		fakeClock.Step(time.Minute)
		objects, err := s.disk.List(t.Context())
		if err != nil || len(objects) != 2 || objects[1].Name != names.Head("pvc-written") {
			return fmt.Sprintf("on the disk: %v, %v", objects, err)
		}
		return ""
	})
	if err := s.delete(t, written); err != nil {
		t.Error(err)
	}
}

// The source of an image is a Block volume that only the controller deletes.
func TestNode_sourceIsABlockDevice(t *testing.T) {
	s := newStore(t)
	head := names.SourceHead("u1")
	if err := s.disk.Create(t.Context(), head, disk.Source{UID: "source-u1", Volume: "u1", Bytes: 8 << 40}); err != nil {
		t.Fatal(err)
	}
	v := &csi.Volume{VolumeId: names.SourceHandle("u1"), VolumeContext: map[string]string{names.ContextDisk: diskUUID}}
	_, err := s.node.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{
		VolumeId: v.GetVolumeId(), StagingTargetPath: s.path("staging", v), VolumeCapability: writer(false),
	})
	wantCode(t, err, codes.InvalidArgument)
	writeDevice(t, s.stage(t, v, true, false), []byte("image"))
	wantCode(t, s.delete(t, v), codes.FailedPrecondition)
	s.unstage(t, v)
	if err := s.disk.Delete(t.Context(), head); err != nil {
		t.Errorf("a lease is left: %v", err)
	}
}

// A device that another program has open stays attached, and the head leased, until that ends.
func TestNode_unstageWaitsForUsers(t *testing.T) {
	s := newStore(t)
	v := s.mustCreate(t, "pvc-1", mib, nil)
	path := s.stage(t, v, true, false)
	device, err := devices.FindName("pvc-1")
	if err != nil {
		t.Fatal(err)
	}
	user, err := os.Open(device.Path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.node.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{
		VolumeId:   "pvc-1",
		TargetPath: path,
	}); err != nil {
		t.Fatal(err)
	}
	request := &csi.NodeUnstageVolumeRequest{VolumeId: "pvc-1", StagingTargetPath: s.path("staging", v)}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := s.node.NodeUnstageVolume(ctx, request); err == nil {
		t.Error("the volume was unstaged while its device was open")
	}
	eventually(t, func() string {
		err := s.delete(t, v)
		if status.Code(err) == codes.Aborted { // the call whose caller has gone
			return err.Error()
		}
		wantCode(t, err, codes.FailedPrecondition)
		return ""
	})
	if err := user.Close(); err != nil {
		t.Fatal(err)
	}
	s.unstage(t, v)
	if err := s.delete(t, v); err != nil {
		t.Error(err)
	}
}

// The volumes of a disk that died are unstaged, also after a restart of the driver, and a volume that another disk has
// is not disturbed.
func TestNode_unstagesFromADeadDisk(t *testing.T) {
	for name, x := range map[string]struct{ block, restart bool }{
		"a device": {block: true}, "a device, after a restart": {block: true, restart: true}, "a file system": {},
	} {
		t.Run(name, func(t *testing.T) {
			s, healthy := newStore(t), newStore(t)
			v := s.mustCreate(t, "pvc-dead", 32*mib, nil)
			s.stage(t, v, x.block, false)
			s.fs.ShutDown(t)
			other := healthy.mustCreate(t, "pvc-healthy", mib, nil)
			healthy.stage(t, other, true, false)
			healthy.restart(t)
			healthy.unstage(t, other)
			if err := healthy.delete(t, other); err != nil {
				t.Error(err)
			}
			if x.restart {
				s.stop(t)
				s.withoutDisk = true
				s.runDriver(t)
			}
			s.unstage(t, v)
			if _, err := devices.FindName("pvc-dead"); !errors.Is(err, errclass.NotFound) {
				t.Errorf("the device is there: %v", err)
			}
			s.stop(t)
			s.withoutDisk = false
			s.fs.Unmount(t)
			s.fs.Mount(t, "")
			s.start(t)
		})
	}
}
