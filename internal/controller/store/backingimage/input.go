package backingimage

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
)

// input is everything that a decision about one image follows from.
type input struct {
	Options
	now     time.Time
	image   *longhornv1.BackingImage
	newUUID string

	disks map[string]*diskView
	// reports are the copies that the stores report with the image's UUID, by their disks' UUIDs.
	reports  map[string]report
	replicas []longhornv1.Replica
	volumes  []string
	source   sourceObjects
	origin   origin
	// reportedSince are the nodes whose stores have reported since the deletion of the image began.
	reportedSince map[string]bool
	// sealOverdue: the first copy is written, and its store has reported for a while without having it.
	sealOverdue bool
}

// diskView is a disk that a Node lists.
type diskView struct {
	uuid, name, node string
	spec             longhornv1.DiskSpec
	schedulable      bool // the node
	tags             []string
	available        int64
	// ready is true if the disk can have another copy, and open if its store can use it at all.
	ready, open bool
	message     string // of the condition Ready
	store       store
}

// store is what is known of a node's store.
type store struct {
	node string
	// heard is when it reported last, by the clock of its node. Zero: never.
	heard time.Time
	// fresh is false if its report is missing. Package silence decides that, so that no two clocks are compared.
	fresh bool
}

// report is a copy in an InstanceManager.
type report struct {
	longhornv1.BackingImageV2CopyInfo
	store store
}

// sourceObjects are what the source of an image has.
type sourceObjects struct {
	pod *corev1.Pod
	// download takes the place of the pod for a restore: the data mover makes a pod for it.
	download *velerov2.DataDownload
	claim    *corev1.PersistentVolumeClaim
	volume   *corev1.PersistentVolume
	// waitsFor says why the pod does not run yet.
	waitsFor string
}

// hasObjects says whether any of them is there.
func (s *sourceObjects) hasObjects() bool { return len(s.listObjects()) > 0 }

// addStores adds what the Nodes and the InstanceManagers say.
func (in *input) addStores(nodes []longhornv1.Node, managers []longhornv1.InstanceManager) {
	in.disks, in.reports = map[string]*diskView{}, map[string]report{}
	stores := map[string]store{}
	for i := range managers {
		m := &managers[i]
		s := store{node: m.Name}
		if t := m.Status.HeartbeatTime; t != nil {
			s.heard, s.fresh = t.Time, m.Status.CurrentState == longhornv1.ManagerRunning
		}
		stores[m.Name] = s
		for _, info := range m.Status.BackingImages {
			uuid := in.image.Status.UUID
			if uuid == "" || info.UUID != uuid {
				continue
			}
			if have, ok := in.reports[info.DiskUUID]; !ok || !have.store.fresh {
				in.reports[info.DiskUUID] = report{BackingImageV2CopyInfo: info, store: s}
			}
		}
	}
	for i := range nodes {
		n := &nodes[i]
		for name, status := range n.Status.DiskStatus {
			if status == nil || status.DiskUUID == "" {
				continue
			}
			s, ok := stores[n.Name]
			if !ok {
				s.node = n.Name
			}
			in.disks[status.DiskUUID] = newDiskView(n, name, status, s)
		}
	}
	// Who deletes the Node of a machine that is gone for good says so of its copies, too.
	for disk, r := range in.reports {
		if in.disks[disk] == nil && !r.store.fresh {
			delete(in.reports, disk)
		}
	}
}

func newDiskView(n *longhornv1.Node, name string, status *longhornv1.DiskStatus, s store) *diskView {
	spec, listed := n.Spec.Disks[name]
	d := &diskView{
		uuid: status.DiskUUID, name: name, node: n.Name, spec: spec, schedulable: n.Spec.AllowScheduling && listed,
		tags: n.Spec.Tags, available: status.StorageAvailable - spec.StorageReserved, store: s,
	}
	if c := meta.FindStatusCondition(status.Conditions, longhornv1.ConditionReady); c != nil {
		d.ready, d.message = c.Status == metav1.ConditionTrue, c.Message
		d.open = d.ready || c.Reason == longhornv1.ReasonDiskPressure
	}
	return d
}

// storeOf returns the store of a disk. ok is false if no Node lists the disk and no store reports a copy on it.
func (in *input) storeOf(disk string) (s store, ok bool) {
	if d := in.disks[disk]; d != nil {
		return d.store, true
	}
	r, ok := in.reports[disk]
	return r.store, ok
}

// freshReport returns what a store that is there says of the copy on a disk.
func (in *input) freshReport(disk string) (report, bool) {
	r, ok := in.reports[disk]
	return r, ok && r.store.fresh
}

// isUsed says whether a replica on a disk uses the image. A replica that is starting waits for the copy.
func (in *input) isUsed(disk string, withStarting bool) bool {
	return slices.ContainsFunc(in.replicas, func(r longhornv1.Replica) bool {
		starting := r.Status.CurrentState == "" || r.Status.CurrentState == longhornv1.ReplicaStarting
		return r.Spec.DiskID == disk && (withStarting || !starting)
	})
}

// isGone says whether nothing knows a disk any more: no Node lists it, and no store reports a copy on it.
func (in *input) isGone(disk string) bool {
	_, known := in.storeOf(disk)
	return !known
}

// isKept says whether a user wants the copy on a disk besides those that there are at least.
func (in *input) isKept(disk string) bool {
	spec := in.image.Spec.DiskFileSpecMap[disk]
	return spec != nil && spec.Keep
}

// isEvicted says whether the copy on a disk is to go.
func (in *input) isEvicted(disk string) bool {
	spec := in.image.Spec.DiskFileSpecMap[disk]
	d := in.disks[disk]
	return spec != nil && spec.EvictionRequested || d != nil && d.spec.EvictionRequested
}

// describeDisk names a disk for people.
func (in *input) describeDisk(uuid string) string {
	if d := in.disks[uuid]; d != nil {
		return "disk " + d.name + " of node " + d.node
	}
	return "disk " + uuid
}
