package machinegroup

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/controller/datamove/moversecret"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/layout"
)

// lifetime is how long the backup of a group lasts after its birth, and after each time that it was extended because
// its DataUploads moved data. It ends a group whose DataUploads move nothing.
const lifetime = 24 * time.Hour

// verdict is what is to be done about a group.
type verdict string

const (
	// wait: nothing, until something changes.
	wait verdict = "Wait"
	// create makes the backup.
	create verdict = "Create"
	// serve gives the mover pods what they need, and tells the launcher of them.
	serve verdict = "Serve"
	// extend lets the backup last longer: its movers have moved data, and its time is half over.
	extend verdict = "Extend"
	// tellEnd tells the mover pods that the backup cannot be read any more.
	tellEnd verdict = "TellEnd"
	// markStored marks the backup: the restore points of all disks are published.
	markStored verdict = "MarkStored"
	// remove deletes the backup.
	remove verdict = "Remove"
)

// member is a DataUpload of a group.
type member struct {
	upload *velerov2.DataUpload
	disk   datamove.MachineDisk
	// backup is the UID of the backup that its exposer has seen, or "". moved: its restore point is published.
	backup types.UID
	moved  bool
	// served: the settings say that Varve serves it. One that is taken goes on without that; a backup is not made for
	// it.
	served bool
}

func (m *member) ended() bool {
	return m.upload.Status.Phase.Ended() || m.upload.DeletionTimestamp != nil
}

func (m *member) stored(backup types.UID) bool {
	return m.moved && m.backup == backup && m.upload.Status.Phase == velerov2.PhaseCompleted && m.upload.DeletionTimestamp == nil
}

// group is everything that a decision depends on.
type group struct {
	now time.Time
	// namespace is that of the DataUploads, machines that of the machine and its backup, and name the group's and its backup's.
	namespace, machines, name string
	members                   []member
	// backup has the group's name; nil if there is none. It may be somebody else's.
	backup *backupv1.VirtualMachineBackup
	// noDefinition says why the definition that the DataUploads name cannot be used. It is nil if it can, if they name
	// none, and once the backup exists.
	noDefinition *definitionError
}

// hasSeen says whether a DataUpload of the group has seen a backup.
func (g *group) hasSeen(backup types.UID) bool {
	return slices.ContainsFunc(g.members, func(m member) bool { return m.backup == backup })
}

// decision is a verdict with its reason, for logs and events.
type decision struct {
	verdict verdict
	reason  string
	// ttl is how long the backup lasts if it is extended, and moved what its DataUploads have moved.
	ttl   time.Duration
	moved int64
	// unwatched: what is waited for is in the settings or in a Secret, and nothing tells when they change.
	unwatched bool
}

// decide says what is to be done next.
func decide(g *group) decision {
	switch b := g.backup; {
	case isRead(g) && (b == nil || !isOfGroup(b, g.namespace, g.name) && !g.hasSeen(b.UID)):
		return decision{verdict: tellEnd, reason: fmt.Sprintf("the VirtualMachineBackup of group %s was deleted", g.name)}
	case b == nil:
		return decideBirth(g)
	case !isOfGroup(b, g.namespace, g.name):
		return decision{verdict: wait, reason: "the backup of that name is somebody else's"} // the exposers say so
	default:
		return decideLife(g)
	}
}

// isRead says whether a DataUpload that has seen a backup is moving.
func isRead(g *group) bool {
	return slices.ContainsFunc(g.members, func(m member) bool { return m.backup != "" && moversecret.IsMoving(m.upload) })
}

func isOfGroup(b *backupv1.VirtualMachineBackup, namespace, name string) bool {
	return b.Spec.IsPulledByDataUploads() && b.Annotations[datamove.AnnotationGroup] == datamove.GroupKey(namespace, name)
}

// decideBirth says whether the machine is to be backed up now.
func decideBirth(g *group) decision {
	taken, unserved := false, ""
	for i := range g.members {
		m := &g.members[i]
		switch {
		case m.ended():
			return decision{verdict: wait, reason: fmt.Sprintf("DataUpload %s has ended", m.upload.Name)}
		case m.backup != "":
			return decision{verdict: wait, reason: fmt.Sprintf("DataUpload %s has seen a backup that is gone", m.upload.Name)}
		case !m.served:
			unserved = m.upload.Name
		}
		taken = taken || moversecret.IsMoving(m.upload)
	}
	switch why := disagreement(g.members); {
	case unserved != "":
		return decision{verdict: wait, reason: fmt.Sprintf("DataUpload %s is not served any more", unserved), unwatched: true}
	case len(g.members) == 0:
		return decision{verdict: wait, reason: "nobody is there"}
	case why != "":
		return decision{verdict: wait, reason: why}
	case !taken:
		return decision{verdict: wait, reason: "no DataUpload has been taken"}
	case g.noDefinition != nil:
		return decision{verdict: wait, reason: g.noDefinition.text, unwatched: true}
	}
	return decision{verdict: create}
}

// disagreement says why the DataUploads are no group, or "".
func disagreement(members []member) string {
	if len(members) == 0 {
		return ""
	}
	first := &members[0]
	volumes := map[string]bool{}
	for i := range members {
		m := &members[i]
		same := m.disk
		same.Volume = first.disk.Volume
		switch {
		case same != first.disk:
			return fmt.Sprintf("DataUploads %s and %s are of one group and name different machines, trackers, claims, definitions or numbers of disks", first.upload.Name, m.upload.Name)
		case volumes[m.disk.Volume]:
			return fmt.Sprintf("two DataUploads of the group have the volume %s", m.disk.Volume)
		}
		volumes[m.disk.Volume] = true
	}
	if len(members) != first.disk.Disks {
		return fmt.Sprintf("the group has %d of %d DataUploads", len(members), first.disk.Disks)
	}
	return ""
}

// decideLife says how the backup of the group goes on.
func decideLife(g *group) decision {
	b := g.backup
	if b.DeletionTimestamp != nil {
		return endFor(g, "was deleted")
	}
	allEnded := !slices.ContainsFunc(g.members, func(m member) bool { return !m.ended() })
	stored := isStored(g)
	why, over := b.Ended()
	switch {
	case over && allEnded:
		return decision{verdict: remove, reason: "nobody reads it, and it has ended"}
	case over:
		return endFor(g, "has ended: "+why)
	case stored && b.Annotations[layout.AnnotationStored] != "true":
		return decision{verdict: markStored}
	case stored:
		return decision{verdict: remove, reason: "every disk is stored"}
	case allEnded:
		return decision{verdict: remove, reason: "its DataUploads have ended, and not every disk is stored"}
	case b.Status.Phase != backupv1.BackupServing:
		return decision{verdict: wait, reason: "the point in time is not fixed yet"}
	}
	if ttl, moved := extensionOf(g); ttl > 0 {
		return decision{
			verdict: extend, ttl: ttl, moved: moved,
			reason: fmt.Sprintf("its DataUploads have moved %d bytes", moved),
		}
	}
	return decision{verdict: serve}
}

// extensionOf returns how long the backup is to last from its birth, and what its DataUploads have moved; 0: as it
// is. A disk of 64 TiB takes days, and what is moved must not be lost for that. Somebody who has set a shorter time
// keeps it.
func extensionOf(g *group) (ttl time.Duration, moved int64) {
	age := g.now.Sub(g.backup.CreationTimestamp.Time)
	total := g.backup.Spec.Lifetime()
	if total < lifetime || total-age > lifetime/2 {
		return 0, 0
	}
	for i := range g.members {
		moved += g.members[i].upload.Status.Progress.BytesDone
	}
	// A mover that was started again counts anew, so anything else is progress.
	if moved == 0 || strconv.FormatInt(moved, 10) == g.backup.Annotations[layout.AnnotationMovedBytes] {
		return 0, 0
	}
	return (age + lifetime).Truncate(time.Second), moved
}

// isStored says whether every disk that a DataUpload of the group names is stored, and that these are all. It counts volumes: a DataUpload may
// join when the backup serves, with the volume of another one, and with another number of disks.
func isStored(g *group) bool {
	stored := map[string]bool{}
	for i := range g.members {
		m := &g.members[i]
		stored[m.disk.Volume] = stored[m.disk.Volume] || m.stored(g.backup.UID)
	}
	for _, done := range stored {
		if !done {
			return false
		}
	}
	return len(stored) > 0 && len(stored) >= disks(g)
}

// disks returns how many DataUploads the group has when it is complete: the most that one of them names.
func disks(g *group) int {
	most := 0
	for i := range g.members {
		most = max(most, g.members[i].disk.Disks)
	}
	return most
}

// endFor tells those who still read that the backup has ended.
func endFor(g *group, why string) decision {
	if !slices.ContainsFunc(g.members, func(m member) bool { return moversecret.IsMoving(m.upload) }) {
		return decision{verdict: wait}
	}
	return decision{verdict: tellEnd, reason: fmt.Sprintf("VirtualMachineBackup %s/%s %s", g.backup.Namespace, g.backup.Name, why)}
}

// newBackup returns the backup of a group that has members.
func newBackup(g *group) *backupv1.VirtualMachineBackup {
	first := &g.members[0]
	b := &backupv1.VirtualMachineBackup{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: g.machines, Name: g.name,
			Annotations: map[string]string{datamove.AnnotationGroup: datamove.GroupKey(g.namespace, g.name)},
		},
		Spec: backupv1.VirtualMachineBackupSpec{
			Mode: backupv1.PullMode, PulledBy: backupv1.PulledByDataUploads, PVCName: first.disk.ScratchClaim, SkipQuiesce: first.disk.SkipQuiesce, TTL: &metav1.Duration{Duration: lifetime},
		},
	}
	if first.disk.Tracker != "" {
		b.Spec.BackupTracker = first.disk.Tracker
		return b
	}
	b.Spec.Source = &corev1.TypedLocalObjectReference{
		APIGroup: ptr.To(kubevirtv1.GroupVersion.Group), Kind: backupv1.SourceKindVirtualMachine, Name: first.disk.Machine,
	}
	return b
}
