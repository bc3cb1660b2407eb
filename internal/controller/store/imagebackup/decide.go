package imagebackup

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/controller/store/storageplace"
	"github.com/varvebackup/varve/internal/location"
	"github.com/varvebackup/varve/internal/nodeselector"
	"github.com/varvebackup/varve/internal/reconcile"
	"github.com/varvebackup/varve/internal/store/names"
)

const (
	// pollChildren is the pause before another look at what no event reports: whether claims and volumes are deleted, and
	// how much a DataUpload has stored.
	pollChildren = 2 * time.Second
	// pollPending is the pause before another look at what a backup waits for.
	pollPending = 30 * time.Second
	// messageBytes bounds the messages in a status.
	messageBytes = 1024
)

// input is everything that a decision about one backup depends on.
type input struct {
	now       time.Time
	backup    *longhornv1.BackupBackingImage
	image     *longhornv1.BackingImage
	locations []velerov1.BackupStorageLocation
	// storage is where the storage of the location can be used.
	storage  storageplace.Place
	nodes    []longhornv1.Node
	managers []longhornv1.InstanceManager
	// kubeNodes are Kubernetes' nodes, and tolerations those of the pods that read images.
	kubeNodes   []corev1.Node
	tolerations []corev1.Toleration
	children    children
}

// place is a disk that has the image, and its node.
type place struct{ disk, node string }

// action says what to do with the objects that were made for a backup.
type action string

const (
	nothing      action = ""
	makeChildren action = "make"
	removeUpload action = "remove the DataUpload"
	removeVolume action = "remove the volume"
)

// plan is what was decided.
type plan struct {
	status    longhornv1.BackupBackingImageStatus
	finalizer bool
	do        action
	from      place // for makeChildren
	// check is the disk whose copy of the image may be wrong; "": none.
	check string
	// next is when to look again without an event. 0: not at all.
	next time.Duration
}

// decide decides about one backup.
func decide(in *input) *plan {
	p := &plan{status: *in.backup.Status.DeepCopy(), finalizer: true}
	s := &p.status
	switch {
	case in.backup.DeletionTimestamp != nil:
		in.decideDeletion(p)
	case s.State == longhornv1.BackupCompleted && in.children.upload == nil:
		in.failBackup(p, "its DataUpload was deleted by somebody else, and the restore point with it: make another backup")
	case s.State == longhornv1.BackupError:
		in.cleanUp(p)
	case s.State == longhornv1.BackupCompleted:
		in.removeVolume(p)
	case in.children.upload != nil:
		in.followUpload(p)
	default:
		in.makeMissing(p)
	}
	s.Message, s.Error = reconcile.CutText(s.Message, messageBytes), reconcile.CutText(s.Error, messageBytes)
	return p
}

// decideDeletion releases a backup that is being deleted as soon as nothing of it is left.
func (in *input) decideDeletion(p *plan) {
	p.finalizer = in.cleanUp(p)
	switch {
	case in.children.upload != nil:
		p.status.Message = joinReason("the restore point is being deleted", in.children.upload.Status.Message)
	case p.finalizer:
		p.status.Message = "the volume from which the image was read is being deleted"
	}
}

// cleanUp removes everything, first the DataUpload, whose pod uses the volume. It says whether anything is left.
func (in *input) cleanUp(p *plan) (left bool) {
	if in.children.upload == nil {
		return in.removeVolume(p)
	}
	p.do, p.next = removeUpload, pollChildren
	return true
}

// removeVolume removes claim and volume. It says whether one is left.
func (in *input) removeVolume(p *plan) (left bool) {
	if !in.children.hasVolume() {
		return false
	}
	p.do, p.next = removeVolume, pollChildren
	return true
}

// failBackup ends the backup.
func (in *input) failBackup(p *plan, why string) {
	p.status.State, p.status.Error, p.status.Message = longhornv1.BackupError, why, ""
	in.cleanUp(p)
}

// followUpload follows the DataUpload that stores the image.
func (in *input) followUpload(p *plan) {
	s, u := &p.status, in.children.upload
	switch {
	case u.Status.Phase == velerov2.PhaseCompleted && u.Status.SnapshotID == "":
		in.failBackup(p, "DataUpload "+u.Name+" is Completed and names no restore point: make another backup")
	case u.Status.Phase == velerov2.PhaseCompleted:
		s.State, s.Progress, s.Message, s.SnapshotID = longhornv1.BackupCompleted, 100, "", u.Status.SnapshotID
		s.BackupCreatedAt = u.Status.CompletionTimestamp.DeepCopy()
		if s.BackupCreatedAt == nil {
			now := metav1.NewTime(in.now).Rfc3339Copy()
			s.BackupCreatedAt = &now
		}
		in.removeVolume(p)
	case u.Status.Phase.Ended():
		ended := "DataUpload " + u.Name + " is " + string(u.Status.Phase)
		if disk := in.sourceDisk(); disk != "" {
			ended += ", of the copy on disk " + disk
		}
		if u.Status.Phase == velerov2.PhaseFailed { // for whatever reason: to read the copy does no harm
			p.check = in.sourceDisk()
		}
		in.failBackup(p, joinReason(ended, u.Status.Message))
	case u.DeletionTimestamp != nil:
		in.failBackup(p, "DataUpload "+u.Name+" was deleted by somebody else before the image was stored: make another "+
			"backup")
	default:
		s.State, s.Message, p.next = longhornv1.BackupInProgress, u.Status.Message, pollChildren
		if u.Status.Progress.TotalBytes > 0 {
			s.Progress = u.Status.Progress.Percent()
		}
	}
}

// sourceDisk returns the disk from which the image was read, or "" if that is not known any more.
func (in *input) sourceDisk() string {
	if v := in.children.volume; v != nil && v.Spec.CSI != nil {
		return v.Spec.CSI.VolumeAttributes[names.ContextDisk]
	}
	return ""
}

// makeMissing makes what is missing, when the image and the location are there.
func (in *input) makeMissing(p *plan) {
	s := &p.status
	if waits := in.explainNoImage(); waits != "" {
		in.keepWaiting(p, waits)
		return
	}
	if s.ImageUUID != "" && s.ImageUUID != in.image.Status.UUID {
		in.failBackup(p, fmt.Sprintf("the image %s was deleted and made again before it was stored: make another backup",
			in.image.Name))
		return
	}
	l := in.chooseLocation()
	if waits := in.explainNoLocation(l); waits != "" {
		in.keepWaiting(p, waits)
		return
	}
	from, waits := in.choosePlace()
	if waits != "" {
		in.keepWaiting(p, waits)
		return
	}
	s.Location, s.ImageUUID = l.Name, in.image.Status.UUID
	s.Size, s.Checksum = in.image.Status.Size, in.image.Status.Checksum
	s.State, s.Message = longhornv1.BackupInProgress, "the volume from which the image is read is being made"
	p.do, p.from, p.next = makeChildren, from, pollChildren
}

// keepWaiting leaves the backup as it is, and says what it waits for.
func (in *input) keepWaiting(p *plan, why string) {
	p.status.Message, p.next = why, pollPending
	if p.status.State == "" {
		p.status.State = longhornv1.BackupPending
	}
}

// explainNoImage says why the image cannot be stored yet, or "".
func (in *input) explainNoImage() string {
	name, image := in.backup.Spec.BackingImage, in.image
	switch {
	case image == nil:
		return fmt.Sprintf("the image %s does not exist in namespace %s: create it", name, in.backup.Namespace)
	case image.DeletionTimestamp != nil:
		return fmt.Sprintf("the image %s is being deleted", name)
	case image.Status.UUID == "" || image.Status.Checksum == "" || image.Status.Size <= 0:
		return fmt.Sprintf("the image %s is not ready: look at its condition Ready", name)
	}
	return ""
}

// locationName names the location that the backup is to be in; "": the default one.
func (in *input) locationName() string {
	return cmp.Or(in.backup.Status.Location, in.backup.Spec.BackupTargetName)
}

// chooseLocation returns the location that the backup is to be in, or nil.
func (in *input) chooseLocation() *velerov1.BackupStorageLocation {
	return location.Choose(in.locations, in.locationName())
}

// explainNoLocation says why nothing can be stored in the location that was chosen, or "".
func (in *input) explainNoLocation(l *velerov1.BackupStorageLocation) string {
	switch name := in.locationName(); {
	case l == nil && name == "":
		return fmt.Sprintf("no BackupStorageLocation in namespace %s is the default one: set spec.backupTargetName, or "+
			"spec.default of a location", in.backup.Namespace)
	case l == nil:
		return fmt.Sprintf("the BackupStorageLocation %s does not exist in namespace %s: create it", name,
			in.backup.Namespace)
	case l.Spec.AccessMode == velerov1.AccessReadOnly:
		return fmt.Sprintf("the BackupStorageLocation %s is read-only: set its spec.accessMode to ReadWrite", l.Name)
	}
	return ""
}

// choosePlace returns a disk that has the image, on a node that takes pods. It prefers disks from which the image is
// not being evicted, and then the node that uses a storage of one node now.
func (in *input) choosePlace() (from place, waits string) {
	var all []place
	copies := 0
	for i := range in.nodes {
		n := &in.nodes[i]
		for _, d := range n.Status.DiskStatus {
			if d == nil || !in.image.HasReadyCopy(d.DiskUUID) {
				continue
			}
			copies++
			if in.isFresh(n.Name) && in.storage.Reaches(n.Name) {
				all = append(all, place{d.DiskUUID, n.Name})
			}
		}
	}
	if len(all) == 0 {
		return place{}, fmt.Sprintf("none of %d copies of the image %s that are ready is on a node whose store reports and "+
			"which reaches the storage of the location: make one there with 'varve image sync'", copies, in.image.Name)
	}
	open := slices.DeleteFunc(slices.Clone(all), func(p place) bool { return in.explainClosed(p.node) != "" })
	if len(open) == 0 {
		node := slices.MinFunc(all, func(a, b place) int { return cmp.Compare(a.node, b.node) }).node
		return place{}, fmt.Sprintf("no node with a copy of the image %s that is ready takes pods, such as node %s, because "+
			"%s: open one, or make a copy on another node with 'varve image sync'", in.image.Name, node, in.explainClosed(node))
	}
	return slices.MinFunc(open, func(a, b place) int {
		return cmp.Or(cmp.Compare(in.evictionOrder(a.disk), in.evictionOrder(b.disk)), in.storage.Compare(a.node, b.node),
			cmp.Compare(a.disk, b.disk))
	}), ""
}

// evictionOrder is larger for a disk from which the image is being evicted.
func (in *input) evictionOrder(disk string) int {
	if spec := in.image.Spec.DiskFileSpecMap[disk]; spec != nil && spec.EvictionRequested {
		return 1
	}
	return 0
}

// explainClosed says why the pod that reads the image cannot run on a node, or "".
func (in *input) explainClosed(name string) string {
	return nodeselector.ExplainUnusable(in.kubeNodes, name, in.tolerations)
}

// isFresh says whether the store of a node reports. It goes by the state, which package silence sets by the
// controller's clock: a heartbeat has the time of the node's clock.
func (in *input) isFresh(node string) bool {
	return slices.ContainsFunc(in.managers, func(m longhornv1.InstanceManager) bool {
		return m.Name == node && m.Status.HeartbeatTime != nil && m.Status.CurrentState == longhornv1.ManagerRunning
	})
}

// joinReason appends what is known of a reason to a text, if anything is.
func joinReason(text, more string) string {
	if more == "" {
		return text
	}
	return text + ": " + more
}
