package csi

import (
	"errors"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
)

func TestChooseDisk(t *testing.T) {
	t.Parallel()
	const gib = 1 << 30
	open := []candidate{
		{name: "small", uuid: "1", available: 10 * gib, hasImage: true},
		{name: "large", uuid: "2", available: 50 * gib, missing: 8 * gib, needsCopy: true},
		{name: "largest", uuid: "3", available: 90 * gib, missing: 8 * gib, needsCopy: true},
	}
	for name, x := range map[string]struct {
		edit func(node *longhornv1.Node, disks map[string]longhornv1.DiskSpec)
		v    volume
		want disk.UID
		err  string
	}{
		"the image goes first": {want: "1"},
		"then space":           {edit: disable("small"), want: "3"},
		"less what is reserved": {edit: func(_ *longhornv1.Node, disks map[string]longhornv1.DiskSpec) {
			disks["small"] = longhornv1.DiskSpec{AllowScheduling: true, StorageReserved: 10 * gib}
			disks["largest"] = longhornv1.DiskSpec{AllowScheduling: true, StorageReserved: 60 * gib}
		}, want: "2"},
		"tags": {edit: func(node *longhornv1.Node, disks map[string]longhornv1.DiskSpec) {
			node.Spec.Tags = []string{"rack1"}
			disks["large"] = longhornv1.DiskSpec{AllowScheduling: true, Tags: []string{"ssd", "nvme"}}
		}, v: volume{diskSelector: []string{"nvme", "ssd"}, nodeSelector: []string{"rack1"}}, want: "2"},
		"a disk with the image's tags": {edit: func(_ *longhornv1.Node, disks map[string]longhornv1.DiskSpec) {
			delete(disks, "small")
			disks["large"] = longhornv1.DiskSpec{AllowScheduling: true, Tags: []string{"ssd", "nvme"}}
		}, v: volume{base: tagged([]string{"ssd"}, nil)}, want: "2"},
		"no other disk with the image's tags, and one has it": {v: volume{base: tagged([]string{"ssd"}, nil)}, want: "1"},
		"no disk with the image's tags": {
			edit: disable("small"), v: volume{base: tagged([]string{"ssd"}, nil)},
			err: "tags of disk large lacks ssd, which spec.diskSelector of BackingImage debian asks for",
		},
		"not on a node with the image's tags": {
			edit: disable("small"), v: volume{base: tagged(nil, []string{"rack1"})},
			err: "spec.tags of Node node1 lacks rack1, which spec.nodeSelector of the image asks for",
		},
		"no node with the tags": {
			v: volume{nodeSelector: []string{"rack1"}}, err: "spec.tags of Node node1 lacks rack1, which nodeSelector asks for",
		},
		"the node is disabled": {edit: func(node *longhornv1.Node, _ map[string]longhornv1.DiskSpec) {
			node.Spec.AllowScheduling = false
		}, err: "spec.allowScheduling of Node node1 is false"},
		"nothing is suitable": {edit: func(_ *longhornv1.Node, disks map[string]longhornv1.DiskSpec) {
			delete(disks, "small")
			disks["large"] = longhornv1.DiskSpec{}
			disks["largest"] = longhornv1.DiskSpec{AllowScheduling: true, EvictionRequested: true}
			disks["closed"] = longhornv1.DiskSpec{AllowScheduling: true}
		}, err: "Node node1 has no disk for the volume: allowScheduling of disk large is false; disk closed is not open; " +
			"disk small is not in spec.disks; evictionRequested of disk largest is true"},
		"no space": {edit: func(_ *longhornv1.Node, disks map[string]longhornv1.DiskSpec) {
			clear(disks)
			disks["small"] = longhornv1.DiskSpec{AllowScheduling: true, StorageReserved: 10 * gib}
		}, err: "disk small has 10737418240 bytes free, and storageReserved is 10737418240"},
		"less what the image takes": {edit: func(_ *longhornv1.Node, disks map[string]longhornv1.DiskSpec) {
			delete(disks, "small")
			disks["largest"] = longhornv1.DiskSpec{AllowScheduling: true, StorageReserved: 82 * gib}
		}, want: "2"},
		"no space for the image": {edit: func(_ *longhornv1.Node, disks map[string]longhornv1.DiskSpec) {
			clear(disks)
			disks["large"] = longhornv1.DiskSpec{AllowScheduling: true, StorageReserved: 42 * gib}
		}, err: "disk large lacks 8589934592 bytes of the image, has 53687091200 bytes free, " +
			"and storageReserved is 45097156608"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			node := &longhornv1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}, Spec: longhornv1.NodeSpec{
				AllowScheduling: true, Disks: map[string]longhornv1.DiskSpec{
					"small": {AllowScheduling: true}, "large": {AllowScheduling: true}, "largest": {AllowScheduling: true},
				},
			}}
			if x.edit != nil {
				x.edit(node, node.Spec.Disks)
			}
			got, err := chooseDisk(node, append([]candidate(nil), open...), x.v)
			if x.err != "" && (!errors.Is(err, errclass.Exhausted) || !strings.Contains(err.Error(), x.err)) {
				t.Fatalf("%v, want %s", err, x.err)
			}
			if (x.err == "") != (err == nil) || got != x.want {
				t.Errorf("disk %q, %v, want %q", got, err, x.want)
			}
		})
	}
}

// tagged is an image that is only on disks and nodes with tags.
func tagged(disk, node []string) *longhornv1.BackingImage {
	return &longhornv1.BackingImage{
		ObjectMeta: metav1.ObjectMeta{Name: "debian"},
		Spec:       longhornv1.BackingImageSpec{DiskSelector: disk, NodeSelector: node},
	}
}

// disable forbids new volumes on a disk.
func disable(name string) func(*longhornv1.Node, map[string]longhornv1.DiskSpec) {
	return func(_ *longhornv1.Node, disks map[string]longhornv1.DiskSpec) { disks[name] = longhornv1.DiskSpec{} }
}

func TestDescribeVolume(t *testing.T) {
	t.Parallel()
	writer := func() *csi.VolumeCapability {
		return &csi.VolumeCapability{
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
		}
	}
	for name, x := range map[string]struct {
		edit func(r *csi.CreateVolumeRequest)
		want volume
		code codes.Code
		err  string
	}{
		"all parameters": {
			edit: func(r *csi.CreateVolumeRequest) {
				r.Parameters = map[string]string{
					"dataEngine": "v2", "numberOfReplicas": "1", "backingImage": "ubuntu", "diskSelector": " ssd, nvme,ssd",
					"fsType":       "ext4",
					"nodeSelector": "rack1", "csi.storage.k8s.io/pvc/name": "claim", "csi.storage.k8s.io/pvc/namespace": "default",
					"csi.storage.k8s.io/pv/name": "pvc-1",
				}
			},
			want: volume{
				bytes: 4096, image: "ubuntu", diskSelector: []string{"nvme", "ssd"}, nodeSelector: []string{"rack1"},
				claim: longhornv1.KubernetesStatus{Namespace: "default", PVCName: "claim"},
			},
		},
		"whole blocks": {
			edit: func(r *csi.CreateVolumeRequest) { r.CapacityRange.RequiredBytes = 4097 }, want: volume{bytes: 8192},
		},
		"no size": {edit: func(r *csi.CreateVolumeRequest) { r.CapacityRange = nil }, want: volume{bytes: 1 << 30}},
		"only a limit": {
			edit: func(r *csi.CreateVolumeRequest) { r.CapacityRange = &csi.CapacityRange{LimitBytes: 10000} },
			want: volume{bytes: 8192},
		},
		"a limit below the block": {
			edit: func(r *csi.CreateVolumeRequest) { r.CapacityRange.LimitBytes = 4095 }, code: codes.OutOfRange,
			err: "multiples of 4096",
		},
		"more than any file has": {
			edit: func(r *csi.CreateVolumeRequest) { r.CapacityRange.RequiredBytes = 1<<63 - 1 }, code: codes.OutOfRange,
			err: "9223372036854775807 bytes are asked for",
		},
		"another engine": {
			edit: parameter("dataEngine", "v1"), code: codes.InvalidArgument,
			err: `the parameter dataEngine of the StorageClass is "v1": use "v2"`,
		},
		"more replicas": {edit: parameter("numberOfReplicas", "3"), code: codes.InvalidArgument, err: `is "3": use "1"`},
		"another file system": {
			edit: parameter("csi.storage.k8s.io/fstype", "xfs"), code: codes.InvalidArgument, err: `is "xfs": use "ext4"`,
		},
		"an unknown parameter": {
			edit: parameter("encrypted", "true"), code: codes.InvalidArgument, err: "does not know the parameter encrypted",
		},
		"a shared volume": {
			edit: func(r *csi.CreateVolumeRequest) {
				r.VolumeCapabilities[0].AccessMode.Mode = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
			}, code: codes.InvalidArgument, err: "use ReadWriteOnce",
		},
		"a source": {
			edit: func(r *csi.CreateVolumeRequest) { r.VolumeContentSource = &csi.VolumeContentSource{} },
			code: codes.InvalidArgument, err: "names neither a snapshot nor a volume",
		},
		"a clone of the size of its snapshot, and of any image": {
			edit: func(r *csi.CreateVolumeRequest) {
				r.CapacityRange = nil
				r.Parameters = map[string]string{parameterImage: "ubuntu-22.04"}
				r.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
					Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: "disk-1/snapshot-1"},
				}}
			},
			want: volume{origin: origin{snapshot: "disk-1/snapshot-1"}},
		},
		"no name": {
			edit: func(r *csi.CreateVolumeRequest) { r.Name = "" }, code: codes.InvalidArgument,
			err: "name is empty",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &csi.CreateVolumeRequest{
				Name: "pvc-1", CapacityRange: &csi.CapacityRange{RequiredBytes: 100},
				VolumeCapabilities: []*csi.VolumeCapability{writer()},
			}
			x.edit(r)
			got, err := describeVolume(r)
			if x.err != "" {
				if err == nil || !strings.Contains(err.Error(), x.err) || grpcCode(err) != x.code {
					t.Errorf("%v, want %s: %s", err, x.code, x.err)
				}
				return
			}
			x.want.handle, x.want.claim.PVName = "pvc-1", "pvc-1"
			if diff := cmp.Diff(x.want, got, cmp.AllowUnexported(volume{}, origin{})); diff != "" || err != nil {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}

func parameter(key, value string) func(*csi.CreateVolumeRequest) {
	return func(r *csi.CreateVolumeRequest) { r.Parameters = map[string]string{key: value} }
}

func TestDecideStatus(t *testing.T) {
	t.Parallel()
	detached := longhornv1.VolumeStatus{State: longhornv1.VolumeDetached, Robustness: longhornv1.RobustnessHealthy}
	attached := longhornv1.VolumeStatus{
		State: longhornv1.VolumeAttached, Robustness: longhornv1.RobustnessHealthy, CurrentNodeID: "node1",
	}
	for name, x := range map[string]struct {
		seen        observation
		before      longhornv1.VolumeStatus
		want        longhornv1.VolumeStatus
		wantReplica longhornv1.ReplicaStatus
	}{
		"waits for its image": {
			seen: observation{diskOpen: true, waiting: "the copy is pending (0 %)"},
			want: longhornv1.VolumeStatus{State: longhornv1.VolumeCreating, Robustness: longhornv1.RobustnessUnknown},
			wantReplica: longhornv1.ReplicaStatus{
				CurrentState: longhornv1.ReplicaStarting,
				Message:      "the copy is pending (0 %)",
			},
		},
		"is there": {
			seen: observation{diskOpen: true, headThere: true}, want: detached,
			wantReplica: longhornv1.ReplicaStatus{CurrentState: longhornv1.ReplicaStopped},
		},
		"is attached": {
			seen: observation{diskOpen: true, headThere: true, hasUser: true}, before: detached, want: attached,
			wantReplica: longhornv1.ReplicaStatus{CurrentState: longhornv1.ReplicaRunning},
		},
		"is detached again": {
			seen: observation{diskOpen: true, headThere: true}, before: attached, want: detached,
			wantReplica: longhornv1.ReplicaStatus{CurrentState: longhornv1.ReplicaStopped},
		},
		"the disk is closed": {
			before: attached,
			want: longhornv1.VolumeStatus{
				State: longhornv1.VolumeAttached, Robustness: longhornv1.RobustnessUnknown, CurrentNodeID: "node1",
			},
			wantReplica: longhornv1.ReplicaStatus{
				CurrentState: longhornv1.ReplicaStopped, Message: "the disk is not open: look at status.diskStatus of Node node1",
			},
		},
		"the data is gone": {
			seen: observation{diskOpen: true}, before: attached,
			want: longhornv1.VolumeStatus{State: longhornv1.VolumeDetached, Robustness: longhornv1.RobustnessFaulted},
			wantReplica: longhornv1.ReplicaStatus{
				CurrentState: longhornv1.ReplicaError,
				Message:      "the disk does not have the volume's data: restore the volume from a backup",
			},
		},
		"the data is damaged": {
			seen: observation{diskOpen: true, headThere: true, headDamaged: true}, before: detached,
			want: longhornv1.VolumeStatus{State: longhornv1.VolumeDetached, Robustness: longhornv1.RobustnessFaulted},
			wantReplica: longhornv1.ReplicaStatus{
				CurrentState: longhornv1.ReplicaError,
				Message:      "the volume's data on the disk is damaged: restore the volume from a backup",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x.seen.node = "node1"
			got, gotReplica := decideStatus(x.seen, x.before, longhornv1.ReplicaStatus{CurrentState: longhornv1.ReplicaStopped})
			if diff := cmp.Diff(x.want, got) + cmp.Diff(x.wantReplica, gotReplica); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestMountOptions(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		options []string
		flags   uintptr
		data    string
	}{
		{nil, 0, "discard"},
		{
			[]string{"defaults", "rw", "noatime", "ro", "errors=remount-ro"},
			unix.MS_NOATIME | unix.MS_RDONLY,
			"errors=remount-ro,discard",
		},
		{[]string{"nodiscard"}, 0, "nodiscard"},
	} {
		flags, data := mountOptions(x.options)
		if flags != x.flags || data != x.data {
			t.Errorf("%q: %#x, %q", x.options, flags, data)
		}
	}
}

func TestDescribeCopy(t *testing.T) {
	t.Parallel()
	for want, s := range map[string]longhornv1.BackingImageStatus{
		"the first copy of the image is not yet begun, and copies to further disks follow it": {},
		"the first copy of the image is in-progress, and copies to further disks follow it": {
			V2FirstCopyStatus: longhornv1.StateInProgress,
		},
		"Varve's controller will have one made there": {V2FirstCopyStatus: longhornv1.StateReady},
		"the copy is failed (10 %): no route to node2": {DiskFileStatusMap: map[string]*longhornv1.BackingImageDiskFileStatus{
			"1": {State: longhornv1.StateFailed, Progress: 10, Message: "no route to node2"},
		}},
	} {
		if got := describeCopy(&longhornv1.BackingImage{Status: s}, "1"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestMissingBytes(t *testing.T) {
	t.Parallel()
	for want, image := range map[int64]longhornv1.BackingImageStatus{
		0:    {},
		1000: {RealSize: 1000},
		400: {RealSize: 1000, DiskFileStatusMap: map[string]*longhornv1.BackingImageDiskFileStatus{
			"1": {State: longhornv1.StateInProgress, Progress: 60}, "2": {Progress: 80},
		}},
	} {
		if got := missingBytes(&longhornv1.BackingImage{Status: image}, "1"); got != want {
			t.Errorf("%d, want %d", got, want)
		}
	}
}
