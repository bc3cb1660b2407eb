package machinegroup

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/controller/datamove/pointdeletion"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/reconcile"
)

// The controllers' cache has less than a DataUpload, and updates that change nothing of that are dropped. None of them may matter.
func TestWatch_missesNothingButProgress(t *testing.T) {
	t.Parallel()
	note := func(moved bool) func(*velerov2.DataUpload) {
		return func(o *velerov2.DataUpload) {
			metav1.SetMetaDataAnnotation(&o.ObjectMeta, datamove.AnnotationExposed, datamove.ReadBackup{Backup: "b1", Moved: moved}.Encode())
		}
	}
	for name, c := range map[string]struct {
		before, change func(*velerov2.DataUpload)
		tells          bool
	}{
		"progress":      {nil, func(o *velerov2.DataUpload) { o.Status.Progress.BytesDone++ }, false},
		"a message":     {nil, func(o *velerov2.DataUpload) { o.Status.Message = "waiting" }, false},
		"the backup":    {nil, note(false), true},
		"what is moved": {note(false), note(true), true},
		"a cancel":      {nil, func(o *velerov2.DataUpload) { o.Spec.Cancel = true }, true},
		"a phase":       {nil, func(o *velerov2.DataUpload) { o.Status.Phase = velerov2.PhaseFailed }, true},
		"a node":        {func(o *velerov2.DataUpload) { o.Status.AcceptedByNode = "" }, func(o *velerov2.DataUpload) { o.Status.AcceptedByNode = "node1" }, true},
		"the driver": {
			func(o *velerov2.DataUpload) { o.Finalizers = nil },
			func(o *velerov2.DataUpload) { o.Finalizers = []string{datamove.Finalizer} }, true,
		},
		"a deletion": {nil, func(o *velerov2.DataUpload) { o.DeletionTimestamp = &metav1.Time{Time: now} }, true},
		"a group": {
			nil, func(o *velerov2.DataUpload) { o.Spec.DataMoverConfig[datamove.ConfigGroup] = "other" },
			true,
		},
		"a mover":   {nil, func(o *velerov2.DataUpload) { o.Spec.DataMover = "other" }, true},
		"a machine": {nil, func(o *velerov2.DataUpload) { o.Spec.SourceNamespace = "other" }, true},
	} {
		before := disksOf("root").members[0].upload
		before.Spec.SnapshotType = velerov2.SnapshotMachineBackup
		if c.before != nil {
			c.before(before)
		}
		after := before.DeepCopy()
		after.ResourceVersion, after.Generation = "2", 2
		c.change(after)
		if got := reconcile.MoreThanVersion().Update(event.UpdateEvent{ObjectOld: cached(t, before), ObjectNew: cached(t, after)}); got != c.tells {
			t.Errorf("%s: %t, want %t", name, got, c.tells)
		}
	}
}

// cached returns what the controllers' cache has of a DataUpload.
func cached(t *testing.T, o *velerov2.DataUpload) *velerov2.DataUpload {
	t.Helper()
	for _, by := range pointdeletion.CachedObjects() {
		out, err := by.Transform(o)
		if err != nil {
			t.Fatal(err)
		}
		return out.(*velerov2.DataUpload)
	}
	return nil
}
