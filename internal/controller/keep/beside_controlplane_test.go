//go:build controlplane

package keep

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/test/controlplane"
	"github.com/varvebackup/varve/test/gen"
)

// TestControlPlane_besideKubeVirt runs the controllers as they run beside KubeVirt. The tests play KubeVirt.
func TestControlPlane_besideKubeVirt(t *testing.T) { //nolint:paralleltest,tparallel // all serve all namespaces
	cluster.AcceptExportsOfSnapshots(t)
	runControllers(t, Options{BesideKubeVirt: true}, map[string]func(*world){
		"a running machine, to the end":      pulled,
		"a stopped machine, to the end":      stoppedBackedUp,
		"a stopped machine, and its exports": exportedBeside,
		"a stopped machine without a status": createdBeside,
		"a machine that runs while read":     startedBeside,
		"a snapshot, and its restore":        snapshotBeside,
		"a snapshot that KubeVirt refuses":   snapshotFailsBeside,
		"an untracked machine, to the end":   untrackedBackedUp,
		"an untracked machine that fails":    untrackedFails,
	})
}

// TestControlPlane_besideKubeVirtDiesAtEachWrite backs an untracked machine up with a controller that dies after a
// third of its writes.
func TestControlPlane_besideKubeVirtDiesAtEachWrite(t *testing.T) { //nolint:paralleltest,tparallel // see above
	cluster.AcceptExportsOfSnapshots(t)
	runControllers(t, Options{BesideKubeVirt: true}, map[string]func(*world){
		"an untracked machine, to the end": untrackedBackedUp,
	}, controlplane.LoseAnswers(t))
}

// pull waits for KubeVirt's backup of a backup, and has it begin.
func (w *world) pull(b *harvesterv1.VirtualMachineBackup) *backupv1.VirtualMachineBackup {
	w.Helper()
	job := w.pullMade(b)
	controlplane.Update(w.T, w.varve, job, true, func(job *backupv1.VirtualMachineBackup) {
		job.Status.Conditions = []metav1.Condition{{
			Type: backupv1.ConditionProgressing, Status: metav1.ConditionTrue, Reason: "Initiated",
			LastTransitionTime: metav1.Now(),
		}}
	})
	return job
}

// pullMade waits for KubeVirt's backup of a backup.
func (w *world) pullMade(b *harvesterv1.VirtualMachineBackup) *backupv1.VirtualMachineBackup {
	w.Helper()
	wait(w, b, isPlanned)
	return wait(w, &backupv1.VirtualMachineBackup{ObjectMeta: w.meta(b.Status.Group)}, exists)
}

// TestControlPlane_besideKubeVirtDoesNotBegin runs the controllers with a clock that is six minutes ahead.
func TestControlPlane_besideKubeVirtDoesNotBegin(t *testing.T) { //nolint:paralleltest,tparallel // see above
	ahead := testclock.NewFakePassiveClock(time.Now().Add(6 * time.Minute))
	runControllers(t, Options{BesideKubeVirt: true, Clock: ahead}, map[string]func(*world){
		"an incremental backup that does not begin": pulledAgain,
	})
}

// pulledAgain: KubeVirt's backup by changed blocks is made again as a full one if it does not begin in time.
func pulledAgain(w *world) {
	w.running()
	first := w.newBackup("monday", nil)
	w.create(first)
	job := w.pull(first)
	for _, u := range w.uploads(first) {
		w.ends(u, velerov2.PhaseCompleted, "")
	}
	wait(w, first, func(b *harvesterv1.VirtualMachineBackup) error {
		if !b.IsReady() || b.Status.MadeAgain != "" {
			return fmt.Errorf("status %+v", b.Status)
		}
		return nil
	})
	controlplane.Update(w.T, w.varve, trackerOf(w, job), true, func(t *backupv1.VirtualMachineBackupTracker) {
		t.Status.LatestCheckpoint = &backupv1.Checkpoint{Name: "web-1", CreationTime: metav1.Now()}
		for _, name := range []string{"root", "data"} {
			t.Status.LatestCheckpoint.Volumes = append(t.Status.LatestCheckpoint.Volumes,
				backupv1.CheckpointVolume{VolumeName: name})
		}
	})
	second := w.newBackup("tuesday", nil)
	w.create(second)
	w.pullMade(second)
	job = &backupv1.VirtualMachineBackup{ObjectMeta: w.meta(second.Status.Group)}
	wait(w, job, func(job *backupv1.VirtualMachineBackup) error {
		if !job.Spec.ForceFullBackup {
			return fmt.Errorf("spec %+v", job.Spec)
		}
		return nil
	})
	w.backupSays(second, says(harvesterv1.ConditionProgressing, corev1.ConditionTrue, "",
		"waits for KubeVirt to begin VirtualMachineBackup "+job.Name))
	if !strings.HasPrefix(second.Status.MadeAgain, "KubeVirt did not begin VirtualMachineBackup "+job.Name) {
		w.Errorf("made again because of %q", second.Status.MadeAgain)
	}
	uid := job.UID
	if job := w.pull(second); job.UID != uid {
		w.Errorf("KubeVirt's backup was made a third time")
	}
	w.stored(second, w.uploads(second))
	w.gone(job)
}

// pulled: the disks of a machine are read from a pull backup of KubeVirt's, which goes when they are stored. It has
// everything if the backup before it was not stored.
func pulled(w *world) {
	_, guest := w.machine(kubevirtv1.RunStrategyAlways)
	gen.Disk("plugged", "web-plugged")(&guest)
	w.start(guest)
	b := w.newBackup("monday", nil)
	w.create(b)
	job := w.pull(b)
	uploads := w.uploads(b)
	if !slices.ContainsFunc(b.Status.ExcludedVolumes, func(v harvesterv1.ExcludedVolume) bool {
		return v.Name == "plugged" && v.Reason == harvesterv1.HotPlugged
	}) || len(uploads) != 2 {
		w.Errorf("%d uploads, left out: %+v", len(uploads), b.Status.ExcludedVolumes)
	}
	tracker := trackerOf(w, job)
	want := backupv1.VirtualMachineBackupSpec{
		Source: &corev1.TypedLocalObjectReference{
			APIGroup: ptr.To("backup.kubevirt.io"), Kind: "VirtualMachineBackupTracker", Name: tracker.Name,
		},
		Mode: "Pull", PVCName: b.Status.Group + "-scratch", TokenSecretRef: ptr.To(b.Status.Group + "-token"),
		ForceFullBackup: true, TTLDuration: &metav1.Duration{Duration: 7 * 24 * time.Hour},
	}
	if diff := cmp.Diff(want, job.Spec); diff != "" {
		w.Errorf("KubeVirt's backup: %s", diff)
	}
	token := wait(w, &corev1.Secret{ObjectMeta: w.meta(b.Status.Group + "-token")}, exists)
	if len(token.Data["token"]) < 32 || !metav1.IsControlledBy(token, b) || !metav1.IsControlledBy(job, b) {
		w.Errorf("a token of %d bytes, %+v", len(token.Data["token"]), token.ObjectMeta)
	}
	disk, err := datamove.ParseBackupDisk(uploads["root"].Spec.DataMoverConfig)
	w.must(err)
	wantDisk := datamove.BackupDisk{
		Backup: job.Name, Volume: "root", Group: b.Status.Group, Definition: string(b.UID),
	}
	if diff := cmp.Diff(wantDisk, disk); diff != "" || !datamove.ReadsEndpoints(uploads["root"].Spec.DataMoverConfig) {
		w.Errorf("the disk of the DataUpload: %s", diff)
	}
	w.stored(b, uploads)
	w.gone(job)
	w.gone(token)

	// KubeVirt moves its tracker.
	controlplane.Update(w.T, w.varve, tracker, true, func(t *backupv1.VirtualMachineBackupTracker) {
		t.Status.LatestCheckpoint = &backupv1.Checkpoint{
			Name: "web-1", CreationTime: metav1.Now(), Volumes: []backupv1.CheckpointVolume{{VolumeName: "root"}},
		}
	})
	lacking := w.newBackup("monday-evening", nil)
	w.create(lacking)
	if job := w.pull(lacking); !job.Spec.ForceFullBackup {
		w.Errorf("with a disk that the checkpoint lacks: %+v", job.Spec)
	}
	for _, u := range w.uploads(lacking) {
		w.ends(u, velerov2.PhaseCompleted, "")
	}
	wait(w, lacking, isReady)
	controlplane.Update(w.T, w.varve, tracker, true, func(t *backupv1.VirtualMachineBackupTracker) {
		for _, name := range []string{"data", "plugged"} {
			t.Status.LatestCheckpoint.Volumes = append(t.Status.LatestCheckpoint.Volumes,
				backupv1.CheckpointVolume{VolumeName: name})
		}
	})

	second := w.newBackup("tuesday", nil)
	w.create(second)
	if job := w.pull(second); job.Spec.ForceFullBackup || trackerOf(w, job).UID != tracker.UID {
		w.Errorf("after a backup that is stored: %+v", job.Spec)
	}
	w.ends(w.uploads(second)["root"], velerov2.PhaseFailed, "the bucket is full")
	w.ends(w.uploads(second)["data"], velerov2.PhaseCompleted, "")
	wait(w, second, func(b *harvesterv1.VirtualMachineBackup) error {
		if !b.HasFailed() {
			return fmt.Errorf("status %+v", b.Status)
		}
		return nil
	})
	w.gone(&backupv1.VirtualMachineBackup{ObjectMeta: w.meta(second.Status.Group)})

	third := w.newBackup("wednesday", nil)
	w.create(third)
	job = w.pull(third)
	if !job.Spec.ForceFullBackup {
		w.Errorf("after a backup that failed: %+v", job.Spec)
	}
	// KubeVirt's backup does not end without its tracker, which goes with its machine.
	controlplane.Update(w.T, w.admin, job, false, func(b *backupv1.VirtualMachineBackup) {
		b.Finalizers = []string{"backup.kubevirt.io/vmbackup-protection"}
	})
	w.must(w.admin.Delete(w.Context(), tracker))
	w.must(w.admin.Delete(w.Context(), third))
	wait(w, &backupv1.VirtualMachineBackupTracker{ObjectMeta: w.meta(tracker.Name)}, func(t *backupv1.VirtualMachineBackupTracker) error {
		if t.UID == tracker.UID || len(t.OwnerReferences) != 1 || t.OwnerReferences[0].UID != third.UID {
			return fmt.Errorf("tracker %+v", t.ObjectMeta)
		}
		return nil
	})
	controlplane.Update(w.T, w.admin, job, false, func(b *backupv1.VirtualMachineBackup) { b.Finalizers = nil })
	w.gone(third)
	w.gone(job)
}

func trackerOf(w *world, job *backupv1.VirtualMachineBackup) *backupv1.VirtualMachineBackupTracker {
	w.Helper()
	return wait(w, &backupv1.VirtualMachineBackupTracker{ObjectMeta: w.meta(job.Spec.Source.Name)}, exists)
}
