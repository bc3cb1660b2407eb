package csi

import (
	"errors"
	"strings"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapshotfake "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/fake"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubernetesfake "k8s.io/client-go/kubernetes/fake"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/diskset"
	"github.com/varvebackup/varve/internal/store/names"
)

// newContent returns a content of a snapshot that was made of pvc-1, as snapshot-controller makes one.
func newContent(edit ...func(*snapshotv1.VolumeSnapshotContent)) *snapshotv1.VolumeSnapshotContent {
	c := &snapshotv1.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: "content", Finalizers: []string{contentFinalizer}},
		Spec: snapshotv1.VolumeSnapshotContentSpec{
			Driver: names.Driver, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
			Source:            snapshotv1.VolumeSnapshotContentSource{VolumeHandle: ptr.To("pvc-1")},
			VolumeSnapshotRef: corev1.ObjectReference{UID: "uid"},
		},
	}
	for _, e := range edit {
		e(c)
	}
	return c
}

func isReady(c *snapshotv1.VolumeSnapshotContent) {
	c.Status = &snapshotv1.VolumeSnapshotContentStatus{
		ReadyToUse: ptr.To(true), SnapshotHandle: ptr.To("disk-1/snapshot-uid"),
	}
}

func hasFailed(c *snapshotv1.VolumeSnapshotContent) {
	c.Status = &snapshotv1.VolumeSnapshotContentStatus{ReadyToUse: ptr.To(false), Error: &snapshotv1.VolumeSnapshotError{}}
}

func isRetained(c *snapshotv1.VolumeSnapshotContent) {
	c.Spec.DeletionPolicy = snapshotv1.VolumeSnapshotContentRetain
}

func namesSnapshot(c *snapshotv1.VolumeSnapshotContent) {
	c.Spec.Source = snapshotv1.VolumeSnapshotContentSource{SnapshotHandle: ptr.To("disk-1/snapshot-uid")}
}

func isUnbound(c *snapshotv1.VolumeSnapshotContent) { c.Spec.VolumeSnapshotRef.UID = "" }

func isDeleted(c *snapshotv1.VolumeSnapshotContent) { c.DeletionTimestamp = &metav1.Time{} }

func isReleased(c *snapshotv1.VolumeSnapshotContent) {
	isDeleted(c)
	c.Annotations = map[string]string{annotationDeleted: "yes"}
}

func withoutFinalizer(c *snapshotv1.VolumeSnapshotContent) { c.Finalizers = nil }

func isOfGroup(c *snapshotv1.VolumeSnapshotContent) {
	c.Annotations = map[string]string{annotationGroup: "g"}
}

func TestDecideContent(t *testing.T) {
	t.Parallel()
	type edits = []func(*snapshotv1.VolumeSnapshotContent)
	for name, x := range map[string]struct {
		edit edits
		want contentAction
	}{
		"new":                                    {nil, contentCreate},
		"new, of nobody":                         {edits{isUnbound}, contentDone},
		"failed before":                          {edits{hasFailed}, contentCreate},
		"made":                                   {edits{isReady}, contentDone},
		"of a group":                             {edits{isOfGroup}, contentDone},
		"names a snapshot":                       {edits{namesSnapshot}, contentFind},
		"names a snapshot that is found":         {edits{namesSnapshot, isReady}, contentDone},
		"deleted, and its VolumeSnapshot is not": {edits{isReady, isDeleted}, contentDone},
		"deleted":                                {edits{isReady, isReleased}, contentDelete},
		"deleted before it was made":             {edits{isReleased}, contentDelete},
		"deleted after it failed":                {edits{hasFailed, isReleased}, contentDelete},
		"deleted and retained":                   {edits{isReady, isRetained, isReleased}, contentRelease},
		"deleted, and its finalizer is gone":     {edits{isReady, isReleased, withoutFinalizer}, contentDone},
		"deleted, and was never bound":           {edits{namesSnapshot, isUnbound, isDeleted}, contentDelete},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := decideContent(newContent(x.edit...)); got != x.want {
				t.Errorf("%d, want %d", got, x.want)
			}
		})
	}
}

// newSnapshotter returns one without disks, for a content that was deleted a while ago.
func newSnapshotter(tb testing.TB, deleted time.Duration, nodes ...client.Object) *snapshotter {
	tb.Helper()
	scheme := runtime.NewScheme()
	if err := longhornv1.AddToScheme(scheme); err != nil {
		tb.Fatal(err)
	}
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	content := newContent(isReady, isReleased)
	content.DeletionTimestamp = ptr.To(metav1.NewTime(now.Add(-deleted)))
	snapshots := snapshotfake.NewSimpleClientset(content)
	d := New(Options{
		Node: "node1", Namespace: "varve", Disks: &diskset.Set{}, Snapshots: snapshots, Clock: clocktesting.NewFakeClock(now),
		Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(nodes...).Build(),
	})
	return &snapshotter{&controllerServer{Driver: d}}
}

func reportingNode(name, disk string) *longhornv1.Node {
	n := &longhornv1.Node{
		ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: name},
		Spec:       longhornv1.NodeSpec{Disks: map[string]longhornv1.DiskSpec{"d": {Path: "/d"}}},
	}
	if disk != "" {
		n.Status.DiskStatus = map[string]*longhornv1.DiskStatus{"d": {DiskUUID: disk}}
	}
	return n
}

// unusableNode returns a node whose only disk cannot be used, and the report of its store. A disk that was used before
// has a UUID.
func unusableNode(name, state, reason, disk string) []client.Object {
	n := reportingNode(name, disk)
	status := &longhornv1.DiskStatus{DiskUUID: disk}
	meta.SetStatusCondition(&status.Conditions, metav1.Condition{
		Type: longhornv1.ConditionReady, Status: metav1.ConditionFalse, Reason: reason,
	})
	n.Status.DiskStatus = map[string]*longhornv1.DiskStatus{"d": status}
	m := &longhornv1.InstanceManager{ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: name}}
	m.Status.CurrentState = state
	return []client.Object{n, m}
}

// The deletion of a snapshot ends only if its disk is gone for good, and waits with words before that.
func TestSnapshotter_deletesWhatIsLost(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		deleted time.Duration
		nodes   []client.Object
		gone    bool
		message string
	}{
		"no Node has the disk":       {time.Hour, []client.Object{reportingNode("node1", "disk-9")}, true, ""},
		"the disk may come back":     {time.Minute, []client.Object{reportingNode("node1", "disk-9")}, false, "is not open"},
		"a Node has not reported":    {time.Hour, []client.Object{reportingNode("node1", "")}, false, "is not open"},
		"the disk is this node's":    {time.Hour, []client.Object{reportingNode("node1", "disk-1")}, false, "is not open"},
		"the disk is another node's": {time.Hour, []client.Object{reportingNode("node2", "disk-1")}, false, ""},
		"a Node's disk was never used": {
			time.Hour, unusableNode("node1", longhornv1.ManagerRunning, longhornv1.ReasonDiskUnusable, ""), true, "",
		},
		"a Node's disk was never used, and its store is silent": {
			time.Hour, unusableNode("node1", longhornv1.ManagerUnknown, longhornv1.ReasonDiskUnusable, ""), false, "is not open",
		},
		"a Node's disk is silent": {
			time.Hour, unusableNode("node1", longhornv1.ManagerRunning, longhornv1.ReasonDiskSilent, ""), false, "is not open",
		},
		"another Node is the first one": {time.Hour, []client.Object{reportingNode("node0", "disk-9")}, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSnapshotter(t, x.deleted, x.nodes...)
			err := s.syncContent(t.Context(), "content")
			if (err != nil) != (x.message != "") {
				t.Errorf("%v", err)
			}
			contents := s.options.Snapshots.SnapshotV1().VolumeSnapshotContents()
			left, err := contents.Get(t.Context(), "content", metav1.GetOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				t.Fatal(err)
			}
			if gone := err != nil || len(left.Finalizers) == 0; gone != x.gone {
				t.Errorf("gone %t, want %t", gone, x.gone)
			}
			if x.message != "" && !strings.Contains(ptr.Deref(left.Status.Error.Message, ""), x.message) {
				t.Errorf("the error is %+v", left.Status.Error)
			}
		})
	}
}

// A content whose snapshot may have been made goes only if each disk that can have it is open and does not have it.
func TestSnapshotter_keepsWhatMayHaveASnapshot(t *testing.T) {
	t.Parallel()
	replica := func(disk string) client.Object {
		r := &longhornv1.Replica{ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: "pvc-1"}}
		r.Spec.NodeID, r.Spec.DiskID = "node1", disk
		return r
	}
	uid := names.SnapshotUID(snapshotNamePrefix + "uid")
	made := disk.Object{Name: names.Snapshot("pvc-1", uid), UID: uid, Kind: disk.KindSnapshot}
	unused := unusableNode("node1", longhornv1.ManagerRunning, longhornv1.ReasonDiskUnusable, "")
	for name, x := range map[string]struct {
		disks   map[string]disk.Disk
		objects []client.Object
		message string
	}{
		"the volume's disk does not have it": {
			map[string]disk.Disk{"d": &snapshottable{}}, []client.Object{replica("disk-d")}, "",
		},
		"the volume's disk has it": {
			map[string]disk.Disk{"d": &snapshottable{made: []disk.Object{made}}}, []client.Object{replica("disk-d")}, "",
		},
		"another disk is silent": {
			map[string]disk.Disk{"a": silentDisk{}, "d": &snapshottable{}}, []client.Object{replica("disk-d")}, "",
		},
		"the volume's disk is silent": {
			map[string]disk.Disk{"d": silentDisk{}}, []client.Object{replica("disk-d")}, "silent",
		},
		"the volume's disk is not open": {
			nil, []client.Object{replica("disk-d"), reportingNode("node1", "disk-d")}, "is not open",
		},
		"no volume, and a disk that is not open": {
			map[string]disk.Disk{"a": &snapshottable{}}, []client.Object{reportingNode("node1", "disk-d")}, "is not open",
		},
		"no volume, and all disks are open": {
			map[string]disk.Disk{"d": &snapshottable{}}, []client.Object{reportingNode("node1", "disk-d")}, "",
		},
		"no volume, and a disk that was never used": {nil, unused, ""},
		"no volume, and a disk is silent": {
			map[string]disk.Disk{"d": silentDisk{}}, []client.Object{reportingNode("node1", "disk-d")}, "silent",
		},
		"no volume, and the Node is not known": {nil, nil, "get Node"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSnapshotter(t, time.Hour, x.objects...)
			for name, d := range x.disks {
				s.options.Disks.Put(diskset.Disk{Disk: d, Name: name, UUID: disk.UID("disk-" + name)})
			}
			contents := s.options.Snapshots.SnapshotV1().VolumeSnapshotContents()
			c, err := contents.Get(t.Context(), "content", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			c.Status = nil
			if _, err := contents.Update(t.Context(), c, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			err = s.syncContent(t.Context(), "content")
			left, getErr := contents.Get(t.Context(), "content", metav1.GetOptions{})
			if getErr != nil && !apierrors.IsNotFound(getErr) {
				t.Fatal(getErr)
			}
			if x.message != "" {
				if !errors.Is(err, errclass.Transient) || len(left.Finalizers) == 0 ||
					!strings.Contains(ptr.Deref(left.Status.Error.Message, ""), x.message) {
					t.Errorf("%v, the finalizers are %v", err, left.Finalizers)
				}
				return
			}
			if err != nil || (getErr == nil && len(left.Finalizers) > 0) {
				t.Errorf("%v, the finalizers are %v", err, left.Finalizers)
			}
			d, ok := x.disks["d"].(*snapshottable)
			if ok && d.n != len(d.made) {
				t.Errorf("%d snapshots are deleted, want %d", d.n, len(d.made))
			}
		})
	}
}

// A volume whose cache cannot be written stays busy until that ends, and nobody waits for it.
func TestFlushWithin_leavesWhatTakesTooLong(t *testing.T) {
	t.Parallel()
	fake := clocktesting.NewFakeClock(time.Now())
	release, ended := make(chan struct{}), make(chan struct{})
	end := func() { close(ended) }
	result := make(chan error, 1)
	timer := fake.NewTimer(time.Minute)
	go func() {
		result <- flushWithin(t.Context(), timer, func() error { <-release; return nil }, &end)
	}()
	fake.Step(time.Minute)
	if err := <-result; !errors.Is(err, errclass.Transient) {
		t.Errorf("%v", err)
	}
	end() // does nothing any more
	select {
	case <-ended:
		t.Error("the volume is free while its cache is written")
	default:
	}
	close(release)
	<-ended

	failed := errors.New("an error of the device")
	end = func() {}
	err := flushWithin(t.Context(), fake.NewTimer(time.Minute), func() error { return failed }, &end)
	if !errors.Is(err, failed) {
		t.Errorf("%v", err)
	}
}

// A claim belongs to the node that has its source, unless that node cannot answer: then the chosen one says where it
// is.
func TestShouldProvision_whereTheSourceIs(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	if err := longhornv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	claim := func(name string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: name, Annotations: map[string]string{
				annotationProvisioner: names.Driver, selectedNode: "node1",
			}},
		}
	}
	source := claim("source")
	source.Spec.VolumeName, source.Status.Phase = "pvc-1", corev1.ClaimBound
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-1"}}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: names.Driver, VolumeHandle: "pvc-1"}
	for name, x := range map[string]struct {
		from, at, state string
		want            map[string]bool
	}{
		"no source":              {"", "node2", longhornv1.ManagerRunning, map[string]bool{"node1": true}},
		"on the chosen node":     {"source", "node1", longhornv1.ManagerRunning, map[string]bool{"node1": true}},
		"on another node":        {"source", "node2", longhornv1.ManagerRunning, map[string]bool{"node2": true}},
		"on a node that is down": {"source", "node2", longhornv1.ManagerUnknown, map[string]bool{"node1": true, "node2": true}},
		"not there yet":          {"other", "node2", longhornv1.ManagerRunning, map[string]bool{"node1": true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			meta := metav1.ObjectMeta{Namespace: "varve", Name: "pvc-1"}
			objects := []client.Object{
				&longhornv1.Replica{ObjectMeta: meta, Spec: longhornv1.ReplicaSpec{NodeID: x.at}},
				&longhornv1.InstanceManager{
					ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: x.at},
					Status:     longhornv1.InstanceManagerStatus{CurrentState: x.state},
				},
			}
			made := claim("made")
			if x.from != "" {
				made.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: x.from}
			}
			for _, node := range []string{"node1", "node2"} {
				d := New(Options{
					Node: node, Namespace: "varve", Disks: &diskset.Set{}, Kubernetes: kubernetesfake.NewClientset(source, pv),
					Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build(),
				})
				p := provisioner{&controllerServer{Driver: d}}
				if got := p.ShouldProvision(t.Context(), made); got != x.want[node] {
					t.Errorf("%s: %t", node, got)
				}
			}
		})
	}
}

// While the node with a snapshot does not report, the first one that does says so.
func TestSnapshotter_saysWhichNodeIsSilent(t *testing.T) {
	t.Parallel()
	const running, silent = longhornv1.ManagerRunning, longhornv1.ManagerUnknown
	manager := func(name, state string) *longhornv1.InstanceManager {
		return &longhornv1.InstanceManager{
			ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: name},
			Status:     longhornv1.InstanceManagerStatus{CurrentState: state},
		}
	}
	for name, x := range map[string]struct {
		managers []client.Object
		want     string
	}{
		"it reports":          {[]client.Object{manager("node1", running), manager("node2", running)}, ""},
		"it does not":         {[]client.Object{manager("node1", running), manager("node2", silent)}, "is on node node2"},
		"it never did":        {[]client.Object{manager("node1", running)}, "is on node node2"},
		"another one says so": {[]client.Object{manager("node0", running), manager("node1", running)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSnapshotter(t, time.Minute, append(x.managers, reportingNode("node2", "disk-1"))...)
			for range 2 {
				if err := s.syncContent(t.Context(), "content"); err != nil {
					t.Error(err)
				}
			}
			contents := s.options.Snapshots.SnapshotV1().VolumeSnapshotContents()
			left, err := contents.Get(t.Context(), "content", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			message := ""
			if left.Status.Error != nil {
				message = *left.Status.Error.Message
			}
			if (message != "") != (x.want != "") || !strings.Contains(message, x.want) {
				t.Errorf("the error is %q", message)
			}
		})
	}
}
