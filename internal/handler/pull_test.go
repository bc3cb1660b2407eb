//go:build controlplane || root

package handler_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/export/podspec"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/controlplane"
	"github.com/varvebackup/varve/test/gen"
)

// pullBackup makes a backup in pull mode in phase Starting, and the attachment pod that brings its claim and its token to the
// node.
func (w *world) pullBackup(tr *backupv1.VirtualMachineBackupTracker, token string, changes ...func(*backupv1.VirtualMachineBackup)) *backupv1.VirtualMachineBackup {
	w.t.Helper()
	volume := "pv-" + w.ns
	claim := w.claim("target", volume)
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: volume}}
	pv.Spec.AccessModes, pv.Spec.Capacity = claim.Spec.AccessModes, claim.Spec.Resources.Requests
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "test.example", VolumeHandle: volume}
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: w.ns, Name: claim.Name, UID: claim.UID}
	if err := cluster.Client(w.t, controlplane.Admin).Create(w.t.Context(), pv); err != nil {
		w.t.Fatal(err)
	}
	b := w.backupOf("b1", tr, func(b *backupv1.VirtualMachineBackup) {
		gen.SetBackupMode(backupv1.PullMode)(b)
		b.Spec.TokenSecretRef = ptr.To("clients")
		for _, change := range changes {
			change(b)
		}
	})
	name := layout.BackupUtilityVolume(b.UID)
	pod := &corev1.Pod{ObjectMeta: gen.Meta(w.ns, layout.AttachmentPod("vm", w.vmi.UID, name))}
	pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(w.vmi, kubevirtv1.GroupVersion.WithKind("VirtualMachineInstance"))}
	pod.Spec.NodeName, pod.Spec.Containers = w.node, []corev1.Container{{Name: "hold", Image: "varve"}}
	pod.Spec.Volumes = []corev1.Volume{{Name: layout.AttachmentVolume, VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "target"},
	}}}
	w.create(pod)
	dir := filepath.Join(w.podsDir, string(pod.UID), "volumes/kubernetes.io~secret", layout.TunnelVolume)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, podspec.TokenKey), []byte(token), 0o400); err != nil {
		w.t.Fatal(err)
	}
	return b
}

// offer plays the controller, which says where the launcher connects to, and whether the endpoints answer.
func (w *world) offer(b *backupv1.VirtualMachineBackup, address string, ready metav1.ConditionStatus) {
	w.t.Helper()
	controlplane.Update(w.t, w.client, b, true, func(b *backupv1.VirtualMachineBackup) {
		b.Status.PullTunnel = &backupv1.PullTunnel{Address: address, ServerName: "export.ns.svc", Authorities: "PEM"}
		b.Status.PullTunnelSecret, b.Status.Cert = "tunnel", "PEM"
		for i := range b.Status.IncludedVolumes {
			b.Status.IncludedVolumes[i].DataEndpoint = "https://export.ns.svc/data"
		}
		meta.SetStatusCondition(&b.Status.Conditions, metav1.Condition{Type: backupv1.ConditionReady, Status: ready, Reason: "Test"})
	})
}

func (w *world) connectedTo(address string) {
	w.t.Helper()
	w.until(func() (err error) {
		w.launcher.view(func() {
			r := w.launcher.connected
			err = want(r.GetAddress() == address && r.GetServerName() == "export.ns.svc" && string(r.GetAuthorities()) == "PEM" && string(r.GetToken()) == "token of b1",
				"connected to %s as %s", r.GetAddress(), r.GetServerName())
		})
		return err
	})
}

func TestPull_isServedAndFinishedByADeletion(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.started()
	tr := w.tracker("tr", "root")
	// The base is a backup in pull mode: nothing of it is on a claim.
	controlplane.Update(t, w.client, tr, true, func(tr *backupv1.VirtualMachineBackupTracker) { tr.Status.LatestCheckpoint.Target = nil })
	b := w.pullBackup(tr, "token of b1")
	r := w.begun(1)
	if !r.GetPull() || !r.GetVolumes()[0].GetIncremental() || r.GetBaseCheckpoint() != "tr-1" || r.GetTargetVolume() != layout.BackupUtilityVolume(b.UID) {
		t.Errorf("begun with %+v", r)
	}
	w.launcher.job(func(j *pb.Backup) { j.Phase, j.TotalBytes = pb.Backup_COPYING, 100 })
	w.launcher.job(func(j *pb.Backup) { j.Phase, j.TotalBytes = pb.Backup_SERVING, 100 })
	w.untilPhase(b, "Serving")
	w.offer(b, "10.96.0.9:9090", metav1.ConditionFalse)
	w.connectedTo("10.96.0.9:9090")
	w.launcher.job(func(j *pb.Backup) {
		j.ProcessedBytes, j.ScratchUsedBytes, j.ScratchFreeBytes = 120, 1<<20, 64<<20
		j.Tunnel = &pb.Tunnel{Error: "connection refused"}
	})
	w.untilBackup(b, func(s *backupv1.VirtualMachineBackupStatus) error {
		return want(s.MovedBytes == 120 && s.Scratch != nil && s.Scratch.FreeBytes == 64<<20 && strings.Contains(s.Message, "connection refused") && s.Progress.Percent == "99%", "%+v", s)
	})
	if meta.FindStatusCondition(b.Status.Conditions, backupv1.ConditionScratchLow) != nil {
		t.Errorf("%+v", b.Status.Conditions)
	}
	w.launcher.job(func(j *pb.Backup) {
		j.ScratchUsedBytes, j.ScratchFreeBytes, j.Tunnel = 64<<20, 1<<20, &pb.Tunnel{Connected: true}
	})
	w.untilBackup(b, func(s *backupv1.VirtualMachineBackupStatus) error {
		return want(meta.IsStatusConditionTrue(s.Conditions, backupv1.ConditionScratchLow) && !strings.Contains(s.Message, "refused"), "%+v", s)
	})

	// A new handler tells the launcher again; a new export has another address.
	calls := w.launcher.count("ConnectBackup")
	w.restart()
	w.until(func() error { return want(w.launcher.count("ConnectBackup") == calls+1, "not told again") })
	w.offer(b, "10.96.0.10:9090", metav1.ConditionTrue)
	w.connectedTo("10.96.0.10:9090")

	w.delete(b)
	w.untilPhase(b, "Copied")
	if w.launcher.count("AbortBackup") != 0 || b.Status.IncludedVolumes[0].DataEndpoint == "" {
		t.Errorf("%d aborts, %+v", w.launcher.count("AbortBackup"), b.Status)
	}
	w.prune(b, backupv1.BackupSucceeded)
	w.untilPhase(b, "Pruned")
}

func TestPull_deletedBeforeItIsReadyIsAborted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	b := w.serving()
	w.offer(b, "10.96.0.9:9090", metav1.ConditionFalse)
	w.delete(b)
	w.untilPhase(b, "CopyFailed")
	if n := w.launcher.count("FinishBackup"); n != 0 || b.Status.Reason != backupv1.ReasonAborted {
		t.Errorf("finished %d times, %s: %s", n, b.Status.Reason, b.Status.Message)
	}
}

func TestPull_scratchIsFull(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	b := w.serving()
	// The job fails just when the backup is deleted that was Ready: nobody can have everything.
	w.offer(b, "10.96.0.9:9090", metav1.ConditionTrue)
	w.launcher.job(func(j *pb.Backup) {
		j.Phase, j.Failure, j.Message = pb.Backup_FAILED, pb.Backup_SCRATCH_FULL, "the scratch claim is full"
	})
	w.delete(b)
	w.untilPhase(b, "CopyFailed")
	if b.Status.Reason != backupv1.ReasonScratchFull {
		t.Errorf("%s: %s", b.Status.Reason, b.Status.Message)
	}
}

func TestPull_jobThatIsLostFailsTheBackup(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	b := w.serving()
	w.launcher.set(func(s *pb.State) { s.Backup = nil })
	w.untilPhase(b, "CopyFailed")
	if n := w.launcher.count("BeginBackup"); n != 1 {
		t.Errorf("begun %d times", n)
	}
}

// The handler is away while the controller ends a backup (TTL, then the deadlines of Pruning and Pruned), and comes back.
func TestPull_jobOfAnEndedBackupIsAborted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	b := w.serving()
	w.offer(b, "10.96.0.9:9090", metav1.ConditionTrue)
	w.connectedTo("10.96.0.9:9090")
	w.stop()
	controlplane.Update(t, w.client, b, true, func(b *backupv1.VirtualMachineBackup) {
		b.Status.Phase, b.Status.Result, b.Status.Reason = backupv1.BackupFailed, backupv1.BackupUnsuccessful, backupv1.ReasonTTLExpired
	})
	controlplane.Update(t, w.client, b, false, func(b *backupv1.VirtualMachineBackup) {
		b.Finalizers = nil
		metav1.SetMetaDataLabel(&b.ObjectMeta, layout.LabelEnded, "true")
	})
	controlplane.Update(t, w.client, w.vmi, true, func(v *kubevirtv1.VirtualMachineInstance) {
		v.Status.ChangedBlockTracking.BackupStatus = nil
	})
	w.run()
	w.until(func() error { return want(w.launcher.count("AbortBackup") > 0, "nobody ends the job") })
}

// The launcher says DONE though nobody has deleted the backup.
func TestPull_doneWithoutADeletionIsNoSuccess(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	b := w.serving()
	w.offer(b, "10.96.0.9:9090", metav1.ConditionFalse)
	w.launcher.job(func(j *pb.Backup) { j.Phase = pb.Backup_DONE })
	w.untilBackup(b, func(s *backupv1.VirtualMachineBackupStatus) error { return want(s.Phase != "Serving", "still Serving") })
	if b.Status.Phase == "Copied" {
		t.Errorf("Copied, though it is not deleted and was never Ready: the tracker moves")
	}
}

// The machine was started before the upgrade that brought pull mode: its launcher's BeginBackup ignores the field pull, and pushes.
func TestPull_launcherThatPushesIsNoSuccess(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.started()
	b := w.pullBackup(w.tracker("tr", "root"), "token of b1")
	w.begun(1)
	w.launcher.job(func(j *pb.Backup) { j.Phase, j.TotalBytes = pb.Backup_COPYING, 100 })
	w.launcher.job(func(j *pb.Backup) { j.Phase, j.TotalBytes = pb.Backup_FINISHING, 100 })
	w.launcher.job(func(j *pb.Backup) { j.Phase, j.ManifestSha256 = pb.Backup_DONE, "digest" })
	w.untilBackup(b, func(s *backupv1.VirtualMachineBackupStatus) error {
		return want(s.Phase != "Starting" && s.Phase != "Copying", "%s", s.Phase)
	})
	if b.Status.Phase != "CopyFailed" {
		t.Errorf("%s (%s): %s: the controller moves the tracker, and nobody has read anything", b.Status.Phase, b.Status.Reason, b.Status.Message)
	}
}

func TestPull_launcherThatKnowsNoPullIsNotAsked(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.started()
	w.launcher.set(func(s *pb.State) { s.PullsBackups = false })
	b := w.pullBackup(w.tracker("tr", "root"), "token of b1")
	w.untilPhase(b, "CopyFailed")
	if w.launcher.count("BeginBackup") != 0 || !strings.Contains(b.Status.Message, "restart the machine") {
		t.Errorf("begun %d times; %s", w.launcher.count("BeginBackup"), b.Status.Message)
	}
}

// serving takes a backup in pull mode to Serving.
func (w *world) serving(changes ...func(*backupv1.VirtualMachineBackup)) *backupv1.VirtualMachineBackup {
	w.t.Helper()
	w.started()
	b := w.pullBackup(w.tracker("tr", "root"), "token of b1", changes...)
	w.begun(1)
	w.launcher.job(func(j *pb.Backup) { j.Phase = pb.Backup_SERVING })
	w.untilPhase(b, "Serving")
	return b
}

func TestPull_stopWaitsAndThenEndsIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.waits = 15 * time.Second
	b := w.serving()
	w.offer(b, "10.96.0.9:9090", metav1.ConditionTrue)
	w.delete(w.vmi)
	w.untilInstance(func(s *kubevirtv1.VirtualMachineInstanceStatus) error {
		c := w.conditionOf(s, kubevirtv1.ConditionStopDelayed)
		return want(c.Status == corev1.ConditionTrue && strings.Contains(c.Message, "b1"), "%+v", c)
	})
	w.untilPhase(b, "CopyFailed")
	if b.Status.Reason != backupv1.ReasonVMDeleted || w.launcher.count("FinishBackup") != 0 {
		t.Errorf("%s: %s", b.Status.Reason, b.Status.Message)
	}
	w.until(func() error { return want(w.launcher.count("Shutdown") > 0, "not shut down") })
}

func TestPull_launcherDies(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	b := w.serving()
	w.offer(b, "10.96.0.9:9090", metav1.ConditionTrue)
	w.launcher.kill()
	controlplane.Update(t, w.client, w.vmi, true, func(v *kubevirtv1.VirtualMachineInstance) { v.Status.Phase = kubevirtv1.PhaseFailed })
	w.untilPhase(b, "CopyFailed")
	if b.Status.Reason != backupv1.ReasonGuestCrashed {
		t.Errorf("%s: %s", b.Status.Reason, b.Status.Message)
	}
}
