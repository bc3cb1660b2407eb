//go:build controlplane

package drive

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/test/controlplane"
)

// newPullBackup creates a pull backup with a disk, which is not Ready.
func (w *world) newPullBackup() *backupv1.VirtualMachineBackup {
	w.t.Helper()
	b := &backupv1.VirtualMachineBackup{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "web-1"},
		Spec:       backupv1.VirtualMachineBackupSpec{BackupTracker: "daily", Mode: backupv1.PullMode, PVCName: "scratch", TokenSecretRef: ptr.To("token")},
	}
	w.create(b)
	return b
}

func (w *world) setReady(b *backupv1.VirtualMachineBackup) {
	w.t.Helper()
	controlplane.Update(w.t, cluster.Client(w.t, controlplane.Controller), b, true, func(b *backupv1.VirtualMachineBackup) {
		b.Status.Cert = "a certificate"
		at := "https://virt-export-web-1." + w.ns + ".svc/exports/root/"
		b.Status.IncludedVolumes = []backupv1.IncludedVolume{{Name: "root", MapEndpoint: at + "map", DataEndpoint: at + "data"}}
		meta.SetStatusCondition(&b.Status.Conditions, metav1.Condition{Type: backupv1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Serving"})
	})
}

func (w *world) uploadOf(b *backupv1.VirtualMachineBackup, name string) *velerov2.DataUpload {
	w.t.Helper()
	return w.upload(name, func(o *velerov2.DataUpload) {
		o.Spec.SnapshotType, o.Spec.CSISnapshot, o.Spec.SourceNamespace = velerov2.SnapshotMachineBackup, nil, b.Namespace
		o.Spec.DataMoverConfig = map[string]string{datamove.ConfigSource: datamove.SourceEndpoints, datamove.ConfigBackup: b.Name, datamove.ConfigVolume: "root"}
	})
}

// moverOf returns the mover pod of a DataUpload, and its job.
func (w *world) moverOf(o *velerov2.DataUpload) (*corev1.Pod, datamove.Job) {
	w.t.Helper()
	pod := w.untilPod(o, func(*corev1.Pod) bool { return true })
	job, err := datamove.DecodeJob(pod.Spec.Containers[0].Env[0].Value)
	if err != nil {
		w.t.Fatal(err)
	}
	return pod, job
}

// moveAll has movers report that they have stored everything.
func (w *world) moveAll() {
	w.set(func() {
		w.report = func(o client.Object) *datamove.Report {
			return &datamove.Report{Outcome: datamove.Succeeded, SnapshotID: pointOf(o), IncrementalBytes: 7}
		}
	})
}

// isStored has a DataUpload that moves a disk of a backup go on to its end, and deletes it. The backup is somebody else's.
func (w *world) isStored(o *velerov2.DataUpload, b *backupv1.VirtualMachineBackup) {
	w.t.Helper()
	w.moveAll()
	w.untilPhase(o, velerov2.PhaseCompleted)
	if note, err := datamove.DecodeReadBackup(o.Annotations[datamove.AnnotationExposed]); err != nil || !note.Moved || note.Backup != b.UID {
		w.t.Errorf("%+v: %v", note, err)
	}
	if err := w.admin.Get(w.t.Context(), client.ObjectKeyFromObject(b), b); err != nil || b.DeletionTimestamp != nil {
		w.t.Errorf("somebody else's backup: %v", err)
	}
	w.delete(o)
	w.untilGone(o)
	w.nothingLeft()
}

// A DataUpload of a pull backup goes through all phases, with the policies of a cluster. Its pod has no claim, and a Secret of its own.
func TestPullBackup_isStored(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.nodeAndDriver()
	b := w.newPullBackup()
	w.set(func() { w.report = func(client.Object) *datamove.Report { return nil } })
	o := w.uploadOf(b, "monday-root")
	w.untilSays(o, "waiting for VirtualMachineBackup "+w.ns+"/web-1 to be Ready, until ")
	w.setReady(b)
	w.untilPhase(o, velerov2.PhaseInProgress)
	pod, job := w.moverOf(o)
	own := slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Secret != nil && v.Secret.SecretName == pod.Name })
	if !own || job.Endpoint == nil || job.Endpoint.BackupUID != b.UID || job.VolumeMode != "" {
		t.Errorf("%+v, own Secret %v", job, own)
	}
	w.isStored(o, b)
}

// The backup is made again under its name while its disk is read. What was stored is not passed off as either.
func TestPullBackup_thatWasMadeAgainFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.nodeAndDriver()
	b := w.newPullBackup()
	w.setReady(b)
	w.set(func() { w.report = func(client.Object) *datamove.Report { return nil } })
	o := w.uploadOf(b, "monday-root")
	w.untilPhase(o, velerov2.PhaseInProgress)
	if err := w.admin.Delete(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	w.newPullBackup()
	w.moveAll()
	v := w.untilPhase(o, velerov2.PhaseFailed)
	if want := fmt.Sprintf("the data was moved, but: VirtualMachineBackup %s/web-1 was made again", w.ns); len(v.Message) < len(want) || v.Message[:len(want)] != want {
		t.Errorf("%q, want %q", v.Message, want)
	}
	w.nothingLeft()
}
