//go:build controlplane

package drive

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/test/controlplane"
	"github.com/varvebackup/varve/test/gen"
)

// A DataUpload of the disk of a running machine goes through all phases on the machine's node. The test plays the controller that makes the
// backup of its group.
func TestMachineDisk_isStored(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	nodes := []string{w.node(), w.node()}
	instance := gen.VirtualMachineInstance(gen.Meta(w.ns, "web"), gen.Guest(gen.Disk("root", "data")))
	w.create(instance)
	controlplane.Update(t, cluster.Client(t, controlplane.Controller), instance, true, func(i *kubevirtv1.VirtualMachineInstance) { i.Status.NodeName = nodes[1] })
	w.driver()
	w.set(func() { w.report = func(client.Object) *datamove.Report { return nil } })
	asked := datamove.MachineDisk{Machine: "web", Volume: "root", Tracker: "daily", ScratchClaim: "scratch", Group: "monday", Disks: 1}
	o := w.upload("monday-root", func(o *velerov2.DataUpload) {
		o.Spec.SnapshotType, o.Spec.CSISnapshot, o.Spec.SourceNamespace, o.Spec.DataMoverConfig = velerov2.SnapshotMachineBackup, nil, w.ns, asked.Config()
	})
	w.untilSays(o, "waiting for VirtualMachineBackup "+w.ns+"/monday to be made, which needs the one DataUpload of group monday")
	b := &backupv1.VirtualMachineBackup{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "monday", Annotations: map[string]string{datamove.AnnotationGroup: datamove.GroupKey(w.ns, "monday")}},
		Spec: backupv1.VirtualMachineBackupSpec{
			BackupTracker: "daily", Mode: backupv1.PullMode, PulledBy: backupv1.PulledByDataUploads, PVCName: "scratch",
		},
	}
	varve := cluster.Client(t, controlplane.Controller)
	if err := varve.Create(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	controlplane.Update(t, varve, b, true, func(b *backupv1.VirtualMachineBackup) {
		b.Status.Phase, b.Status.SourceName, b.Status.CheckpointName = backupv1.BackupServing, "web", "daily-1"
		b.Status.IncludedVolumes = []backupv1.IncludedVolume{{Name: "root", Type: backupv1.Full, VirtualBytes: 1 << 20}}
	})
	v := w.untilPhase(o, velerov2.PhaseInProgress)
	pod, job := w.moverOf(o)
	if job.Tunnel == nil || job.Tunnel.BackupUID != b.UID || job.Tunnel.Checkpoint != "daily-1" || job.Labels[datamove.LabelGroup] != "monday" {
		t.Errorf("%+v", job)
	}
	if v.Driver != nodes[1] || pod.Spec.NodeName != nodes[1] {
		t.Errorf("%s drives it, on %s: the machine is on %s", v.Driver, pod.Spec.NodeName, nodes[1])
	}
	w.isStored(o, b)
}
