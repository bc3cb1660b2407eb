package data

import (
	"cmp"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/progress"
	"github.com/varvebackup/varve/internal/datamove"
)

// movement is a DataUpload or a DataDownload, with what both say under different names.
type movement struct {
	object client.Object

	kind datamove.Kind
	// disk is which disk of a running machine an upload moves, or nil.
	disk                      *datamove.MachineDisk
	volume, location, mover   string
	canceled                  bool
	phase                     velerov2.Phase
	message, node, snapshotID string
	progress                  velerov2.Progress
	started, completed        *metav1.Time
}

// newMovement returns what an object says. Any other kind is a mistake in this package.
func newMovement(object runtime.Object) *movement {
	switch o := object.(type) {
	case *velerov2.DataUpload:
		return &movement{
			object: o, kind: datamove.Upload, disk: machineDiskOf(o), volume: o.Spec.SourceNamespace + "/" + o.Spec.SourcePVC,
			location: o.Spec.BackupStorageLocation, mover: o.Spec.DataMover, canceled: o.Spec.Cancel,
			phase: cmp.Or(o.Status.Phase, velerov2.PhaseNew), message: o.Status.Message, node: o.Status.Node, snapshotID: o.Status.SnapshotID,
			progress: o.Status.Progress, started: o.Status.StartTimestamp, completed: o.Status.CompletionTimestamp,
		}
	case *velerov2.DataDownload:
		return &movement{
			object: o, kind: datamove.Download, volume: o.Spec.TargetVolume.Namespace + "/" + o.Spec.TargetVolume.PVC,
			location: o.Spec.BackupStorageLocation, mover: o.Spec.DataMover, canceled: o.Spec.Cancel,
			phase: cmp.Or(o.Status.Phase, velerov2.PhaseNew), message: o.Status.Message, node: o.Status.Node, snapshotID: o.Spec.SnapshotID,
			progress: o.Status.Progress, started: o.Status.StartTimestamp, completed: o.Status.CompletionTimestamp,
		}
	default:
		panic("neither a DataUpload nor a DataDownload")
	}
}

// source returns what is moved: the claim, or machine and volume of a running machine's disk.
func (m *movement) source() string {
	if m.disk == nil {
		return m.volume
	}
	return m.object.(*velerov2.DataUpload).Spec.SourceNamespace + "/" + m.disk.Machine + ":" + m.disk.Volume
}

// group returns the group of a running machine's disk, or "".
func (m *movement) group() string {
	if m.disk == nil {
		return ""
	}
	return m.disk.Group
}

// dataMover returns the name of who serves it.
func (m *movement) dataMover() string { return cmp.Or(m.mover, datamove.BuiltIn+" (built-in)") }

// took returns the time from the first byte to the end, or to now.
func (m *movement) took(now time.Time) string {
	switch {
	case m.started == nil:
		return ""
	case m.completed != nil:
		return human.Span(m.completed.Sub(m.started.Time))
	default:
		return human.Span(now.Sub(m.started.Time))
	}
}

// amount returns how much of the volume was moved.
func (m *movement) amount() string {
	if m.progress.TotalBytes == 0 {
		return ""
	}
	return human.Bytes(m.progress.BytesDone) + " of " + human.Bytes(m.progress.TotalBytes)
}

// rates measures the movements that one command shows.
type rates struct{ meters progress.Meters[types.UID] }

// measure returns how fast a movement is, and how long the rest takes at that rate. Both are "" until it was seen twice: what was done before
// tells nothing about the rest, because what is known to be zero is done at once.
func (r *rates) measure(now time.Time, m *movement) (rate, left string) {
	uid := m.object.GetUID()
	if m.phase != velerov2.PhaseInProgress {
		r.meters.Forget(uid)
		return "", ""
	}
	report := r.meters.Measure(now, uid, m.report())
	if report.BytesPerSecond > 0 {
		rate = human.Bytes(report.BytesPerSecond) + "/s"
	}
	if report.RemainingSeconds > 0 {
		left = human.Span(time.Duration(report.RemainingSeconds) * time.Second)
	}
	return rate, left
}

// report returns the progress for a bar.
func (m *movement) report() progress.Report {
	return progress.Report{
		Name: m.object.GetName(), Phase: string(m.phase), Message: m.message,
		ProcessedBytes: m.progress.BytesDone, TotalBytes: m.progress.TotalBytes, Percent: progress.Percent(m.progress.BytesDone, m.progress.TotalBytes),
	}
}
