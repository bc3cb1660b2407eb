package backingimage

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
)

var (
	now = time.Date(2026, 11, 30, 9, 0, 0, 0, time.UTC)
	sum = strings.Repeat("ab", 64)
	// pieceSum is that of its pieces.
	pieceSum = strings.Repeat("cd", 32)
)

const (
	pending    = longhornv1.StatePending
	inProgress = longhornv1.StateInProgress
	ready      = longhornv1.StateReady
	failed     = longhornv1.StateFailed
	unknown    = longhornv1.StateUnknown
)

// fixture is a cluster with an image. Its nodes a, b and c have one disk each, disk-a to disk-c, of which disk-a has the
// most space.
type fixture struct {
	image    *longhornv1.BackingImage
	nodes    map[string]*longhornv1.Node
	managers map[string]*longhornv1.InstanceManager
	replicas []longhornv1.Replica
	volumes  []string
	source   sourceObjects
	origin   origin
	// reportedSince are the nodes whose stores have reported since the deletion of the image began.
	reportedSince map[string]bool
	// sealOverdue: the first copy's store has reported for a while that it does not have what was written.
	sealOverdue bool
}

func newFixture() *fixture {
	f := &fixture{
		nodes: map[string]*longhornv1.Node{}, managers: map[string]*longhornv1.InstanceManager{},
		reportedSince: map[string]bool{},
		image: &longhornv1.BackingImage{
			ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: "ubuntu-22.04", Generation: 3},
			Spec: longhornv1.BackingImageSpec{
				SourceType: longhornv1.SourceDownload, MinNumberOfCopies: 1,
				DiskFileSpecMap: map[string]*longhornv1.BackingImageDiskFileSpec{},
			},
		},
	}
	for i, name := range []string{"a", "b", "c"} {
		f.nodes[name] = &longhornv1.Node{
			ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: name},
			Spec: longhornv1.NodeSpec{AllowScheduling: true, Disks: map[string]longhornv1.DiskSpec{
				"default-disk": {AllowScheduling: true, StorageReserved: 10},
			}},
			Status: longhornv1.NodeStatus{DiskStatus: map[string]*longhornv1.DiskStatus{"default-disk": {
				DiskUUID: "disk-" + name, StorageAvailable: int64(1000 - i),
				Conditions: []metav1.Condition{{
					Type: longhornv1.ConditionReady, Status: metav1.ConditionTrue, Reason: longhornv1.ReasonDiskReady,
				}},
			}}},
		}
		f.managers[name] = &longhornv1.InstanceManager{
			ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: name},
			Status: longhornv1.InstanceManagerStatus{
				CurrentState:  longhornv1.ManagerRunning,
				HeartbeatTime: ptr.To(metav1.NewMicroTime(now.Add(-10 * time.Second))),
				BackingImages: map[string]longhornv1.BackingImageV2CopyInfo{},
			},
		}
	}
	return f
}

// silent has a node's store report nothing for a while. Its clock may have been right.
func (f *fixture) silent(node string) {
	f.managers[node].Status.CurrentState = longhornv1.ManagerUnknown
	f.managers[node].Status.HeartbeatTime = ptr.To(metav1.NewMicroTime(now.Add(-longhornv1.ReportTimeout - time.Minute)))
}

// closeDisk has a node's disk be one that its store cannot use.
func (f *fixture) closeDisk(node, reason, message string) {
	f.nodes[node].Status.DiskStatus["default-disk"].Conditions = []metav1.Condition{{
		Type: longhornv1.ConditionReady, Status: metav1.ConditionFalse, Reason: reason, Message: message,
	}}
}

// reports has a node's store report a copy.
func (f *fixture) reports(node string, state longhornv1.BackingImageState, edit ...func(*longhornv1.BackingImageV2CopyInfo)) {
	info := longhornv1.BackingImageV2CopyInfo{Name: f.image.Name, UUID: "u", DiskUUID: "disk-" + node, State: state}
	if state == ready {
		info.CurrentChecksum, info.Size, info.RealSize, info.Progress = sum, 1_000_001, 100, 100
		info.PiecesChecksum = pieceSum
	}
	for _, e := range edit {
		e(&info)
	}
	f.managers[node].Status.BackingImages[info.DiskUUID+"/u"] = info
}

// wants has the image's spec list disks.
func (f *fixture) wants(nodes ...string) {
	for _, node := range nodes {
		f.image.Spec.DiskFileSpecMap["disk-"+node] = &longhornv1.BackingImageDiskFileSpec{DataEngine: "v2"}
	}
}

// was has the image's status say that a copy has been in a state for a while.
func (f *fixture) was(node string, state longhornv1.BackingImageState, since time.Duration) {
	s := &f.image.Status
	if s.DiskFileStatusMap == nil {
		s.DiskFileStatusMap = map[string]*longhornv1.BackingImageDiskFileStatus{}
	}
	s.DiskFileStatusMap["disk-"+node] = &longhornv1.BackingImageDiskFileStatus{
		State: state, LastStateTransitionTime: now.Add(-since).Format(time.RFC3339), Message: "as it was",
	}
}

// begun has the first copy be made on a node's disk.
func (f *fixture) begun(node string, state longhornv1.BackingImageState) {
	f.image.Finalizers = []string{longhornv1.BackingImageFinalizer}
	f.image.Status.UUID, f.image.Status.V2FirstCopyDisk, f.image.Status.V2FirstCopyStatus = "u", "disk-"+node, state
	f.wants(node)
}

// isReady has the image be ready on nodes' disks.
func (f *fixture) isReady(nodes ...string) {
	f.begun(nodes[0], ready)
	f.image.Status.Checksum, f.image.Status.Size, f.image.Status.PiecesChecksum = sum, 1_000_001, pieceSum
	for _, node := range nodes {
		f.wants(node)
		f.was(node, ready, time.Hour)
		f.reports(node, ready)
	}
}

// hasReplica has a replica of a clone on a node's disk.
func (f *fixture) hasReplica(node, state string) {
	f.replicas = append(f.replicas, longhornv1.Replica{
		Spec:   longhornv1.ReplicaSpec{NodeID: node, DiskID: "disk-" + node, BackingImage: f.image.Name},
		Status: longhornv1.ReplicaStatus{CurrentState: state},
	})
}

// hasPod has a source with a pod in a phase.
func (f *fixture) hasPod(phase corev1.PodPhase, message string) {
	f.source.claim, f.source.volume = &corev1.PersistentVolumeClaim{}, &corev1.PersistentVolume{}
	f.source.pod = &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(now)}, Status: corev1.PodStatus{Phase: phase},
	}
	if message != "" {
		f.source.pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Message: message},
		}}}
	}
}

// restores has the image be a restore from a location.
func (f *fixture) restores() {
	f.image.Spec.SourceType = longhornv1.SourceRestore
	f.image.Spec.SourceParameters = map[string]longhornv1.ParameterValue{
		longhornv1.ParameterLocation:   "s3",
		longhornv1.ParameterSnapshotID: "varve1.disk.0123456789abcdef0123456789abcdef.app",
	}
	f.origin.location = &velerov1.BackupStorageLocation{}
}

// kubeNodes has the cluster have nodes that are ready.
func (f *fixture) kubeNodes(names ...string) {
	for _, name := range names {
		n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		f.origin.kubeNodes = append(f.origin.kubeNodes, n)
	}
}

// hasDownload has a source with a DataDownload in a phase.
func (f *fixture) hasDownload(phase velerov2.Phase, message string) {
	f.source.claim, f.source.volume = &corev1.PersistentVolumeClaim{}, &corev1.PersistentVolume{}
	f.source.download = &velerov2.DataDownload{ObjectMeta: metav1.ObjectMeta{Name: "source-u"}}
	f.source.download.Status.Phase, f.source.download.Status.Message = phase, message
}

// isRestored has a DataDownload in a phase restore the first copy on disk-a.
func (f *fixture) isRestored(phase velerov2.Phase, message string) {
	f.begun("a", inProgress)
	f.reports("a", inProgress)
	f.hasDownload(phase, message)
}

// clones has the image be a clone of another one with copies on nodes' disks in states.
func (f *fixture) clones(copies map[string]longhornv1.BackingImageState) {
	f.image.Spec.SourceType = longhornv1.SourceClone
	f.image.Spec.SourceParameters = map[string]longhornv1.ParameterValue{longhornv1.ParameterBackingImage: "base"}
	f.origin.image = &longhornv1.BackingImage{}
	f.origin.image.Spec.DiskFileSpecMap = map[string]*longhornv1.BackingImageDiskFileSpec{}
	f.origin.image.Status.DiskFileStatusMap = map[string]*longhornv1.BackingImageDiskFileStatus{}
	for node, state := range copies {
		f.origin.image.Spec.DiskFileSpecMap["disk-"+node] = nil
		f.origin.image.Status.DiskFileStatusMap["disk-"+node] = &longhornv1.BackingImageDiskFileStatus{State: state}
	}
}

// exports has the image be made of a volume in a state on a node's disk.
func (f *fixture) exports(node, state string) {
	f.image.Spec.SourceType = longhornv1.SourceExport
	f.image.Spec.SourceParameters = map[string]longhornv1.ParameterValue{longhornv1.ParameterVolumeName: "pvc-1"}
	f.origin.volume, f.origin.replica = &longhornv1.Volume{}, &longhornv1.Replica{}
	f.origin.volume.Status = longhornv1.VolumeStatus{State: state, Robustness: longhornv1.RobustnessHealthy}
	if state == longhornv1.VolumeAttached {
		f.origin.volume.Status.CurrentNodeID = node
	}
	f.origin.replica.Spec.DiskID = "disk-" + node
}

func (f *fixture) decide() *plan { return decide(f.input()) }

func (f *fixture) input() *input {
	in := &input{
		Options: Options{Namespace: "varve"}.withDefaults(), now: now, image: f.image, newUUID: "u",
		replicas: f.replicas, volumes: f.volumes, source: f.source, origin: f.origin,
		reportedSince: f.reportedSince, sealOverdue: f.sealOverdue,
	}
	var nodes []longhornv1.Node
	var managers []longhornv1.InstanceManager
	for _, name := range slices.Sorted(maps.Keys(f.nodes)) {
		nodes = append(nodes, *f.nodes[name])
	}
	for _, name := range slices.Sorted(maps.Keys(f.managers)) {
		managers = append(managers, *f.managers[name])
	}
	in.addStores(nodes, managers)
	return in
}

// outcome is what a test compares of a plan.
type outcome struct {
	first  longhornv1.BackingImageState
	disk   string // of the first copy, without "disk-"
	disks  string // in the spec, without "disk-"
	states string // of the copies: "a ready, b pending"
	source sourceAction
	reason string
}

// compare compares a plan, and the message of its condition.
func (want outcome) compare(t *testing.T, p *plan, words string) {
	t.Helper()
	short := func(disk string) string { return strings.TrimPrefix(disk, "disk-") }
	got := outcome{first: p.status.V2FirstCopyStatus, disk: short(p.status.V2FirstCopyDisk), source: p.source}
	var disks, states []string
	for _, disk := range slices.Sorted(maps.Keys(p.disks)) {
		disks = append(disks, short(disk))
	}
	for _, disk := range slices.Sorted(maps.Keys(p.status.DiskFileStatusMap)) {
		states = append(states, short(disk)+" "+string(p.status.DiskFileStatusMap[disk].State))
	}
	got.disks, got.states = strings.Join(disks, " "), strings.Join(states, ", ")
	c := meta.FindStatusCondition(p.status.Conditions, longhornv1.ConditionReady)
	if c == nil {
		t.Fatal("no condition")
	}
	got.reason = c.Reason
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(outcome{})); diff != "" {
		t.Errorf("%s\n%s", diff, c.Message)
	}
	if !strings.Contains(c.Message, words) {
		t.Errorf("the message is %q, want %q", c.Message, words)
	}
	if c.ObservedGeneration != 3 || (c.Status == metav1.ConditionTrue) != (c.Reason == longhornv1.ReasonImageReady) {
		t.Errorf("condition %+v", c)
	}
}
