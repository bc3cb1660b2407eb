//go:build beside

package beside

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/verdict"
	"github.com/varvebackup/varve/test/wait"
)

const mib = int64(1) << 20

// TestBeside runs machines of KubeVirt's through the lives that Varve gives them, which end with Varve's removal. Three
// of them live at one time, because pods start and guests boot for most of it. What all of them notice comes last.
func TestBeside(t *testing.T) {
	lived, interrupted, steered := newScene(t, "beside"), newScene(t, "beside-interrupted"), newScene(t, "beside-clients")
	// Two disks of each machine are read at one time.
	lived.mustSucceed(lived.SetMover(t.Context(), "concurrency: {perNode: 6}"))
	if !t.Run("machines", func(t *testing.T) {
		runBeside(t, "lost and restored", lived, (*scene).liveAndRestore)
		runBeside(t, "interrupted", interrupted, func(s *scene) {
			s.bootMachine()
			s.backUp("undisturbed")
			s.runStep("mover killed", (*scene).interruptMover)
			s.runStep("export killed", (*scene).interruptExport)
			s.runStep("canceled", (*scene).cancelBackup)
		})
		runBeside(t, "clients", steered, func(s *scene) {
			s.bootMachine()
			s.backUp("first")
			s.runStep("restarted", (*scene).restartMachine)
			s.runStep("console", (*scene).typeAtConsole)
			s.runStep("stopped, exported, lost and restored", (*scene).exportStopped)
			s.runStep("not tracked, lost and restored", (*scene).backUpUntracked)
			s.runStep("snapshot, and restored from it", (*scene).takeSnapshot)
		})
	}) {
		t.FailNow()
	}
	interrupted.runStep("virt-handler killed", (*scene).interruptHandler)
	interrupted.runStep("uninstalled", (*scene).uninstallVarve)
}

// runBeside runs a test of a scene beside those of other scenes.
func runBeside(t *testing.T, name string, s *scene, test func(*scene)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		part := *s
		part.t = t
		test(&part)
	})
}

// liveAndRestore backs a machine up in full, by what has changed, and by a schedule. It is lost and restored twice.
func (s *scene) liveAndRestore() {
	var changed *harvesterv1.VirtualMachineBackup
	var sums map[string]string
	s.runStep("full backup", func(s *scene) {
		s.bootMachine()
		s.runInGuest(`dd if=/dev/urandom of=$root bs=1M seek=1 count=24 conv=fsync
			dd if=/dev/urandom of=$data bs=1M seek=400 count=24 conv=fsync`)
		for _, v := range s.backUp("monday").Status.VolumeBackups {
			if v.ChangedBytes < 24*mib || v.SnapshotID == "" {
				s.t.Errorf("disk %s of the first backup: %+v", v.VolumeName, v)
			}
		}
	})
	s.runStep("incremental backup", func(s *scene) {
		s.runInGuest(`dd if=/dev/urandom of=$root bs=4k seek=1001 count=3 conv=fsync
			dd if=/dev/urandom of=$data bs=1M seek=7 count=2 conv=fsync
			dd if=/dev/zero of=$data bs=1M seek=405 count=1 conv=fsync`)
		sums = s.hashDisks()
		changed = s.backUp("tuesday")
		s.checkIncremental(changed)
		if after := s.hashDisks(); !cmp.Equal(after, sums) {
			s.t.Fatalf("the disks changed while nothing wrote to them: %v, then %v", sums, after)
		}
	})
	s.runStep("lost", func(s *scene) { s.loseAndRestore(changed, sums) })
	s.runStep("scheduled", func(s *scene) {
		s.runInGuest(`dd if=/dev/urandom of=$data bs=64k seek=9 count=30 conv=fsync`)
		sums = s.hashDisks()
		changed = s.runSchedule()
	})
	s.runStep("lost again, and restored from the schedule", func(s *scene) { s.loseAndRestore(changed, sums) })
}

// checkIncremental checks that a backup read and stored what had changed, which is something, and not more.
func (s *scene) checkIncremental(b *harvesterv1.VirtualMachineBackup) {
	s.t.Helper()
	changed := int64(0)
	for _, v := range b.Status.VolumeBackups {
		changed += v.ChangedBytes
		if v.FullReason != "" || v.ChangedBytes > 16*mib {
			s.t.Errorf("disk %s of backup %s is not incremental: %d bytes changed, full because of %q", v.VolumeName,
				b.Name, v.ChangedBytes, v.FullReason)
		}
	}
	if changed == 0 {
		s.t.Errorf("nothing had changed for backup %s", b.Name)
	}
	uploads, err := s.listUploads(s.t.Context(), b)
	s.mustSucceed(err)
	moved := int64(0)
	for i := range uploads {
		report, err := datamove.DecodeReport(uploads[i].Annotations[datamove.AnnotationReport])
		s.mustSucceed(err)
		moved += uploads[i].Status.IncrementalBytes
		if report.ReadBytes > 16*mib {
			s.t.Errorf("DataUpload %s read %d bytes", uploads[i].Name, report.ReadBytes)
		}
	}
	if len(uploads) != len(b.Status.VolumeBackups) || moved != changed {
		s.t.Errorf("%d DataUploads of backup %s moved %d bytes, and it says %d", len(uploads), b.Name, moved, changed)
	}
}

// loseAndRestore deletes the machine and restores it. Its disks must hold what they held.
func (s *scene) loseAndRestore(b *harvesterv1.VirtualMachineBackup, sums map[string]string) {
	s.t.Helper()
	ctx, vmi := s.t.Context(), s.getInstance()
	s.mustSucceed(s.DeleteMachine(ctx, machine, 2*time.Minute))
	s.mustSucceed(s.WaitGone(ctx, vmi, time.Minute))
	s.mustSucceed(s.RestoreLostMachine(ctx, b, backupTimeout))
	s.waitTracked()
	if diff := cmp.Diff(sums, s.hashDisks()); diff != "" {
		verdict.Errorf(s.t, "the restored disks differ from those that were backed up (-want +got):\n%s", diff)
	}
}

// uninstallVarve removes Varve. The machine runs on, KubeVirt has its kinds, and nothing of Varve is left.
func (s *scene) uninstallVarve() {
	s.t.Helper()
	ctx := s.t.Context()
	s.mustSucceed(s.ResetMover(ctx))
	running := s.getInstance().UID
	listKinds := func() []string {
		return s.listNames("apiextensions.k8s.io/v1", "CustomResourceDefinition", isKubeVirts)
	}
	kubevirts := listKinds()
	if len(kubevirts) < 10 {
		s.t.Fatalf("KubeVirt has the kinds %v", kubevirts)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(cluster.root, "deploy/uninstall.sh"))
	cmd.Env = append(os.Environ(), "KUBECTL="+filepath.Join(cluster.root, "build/kube/bin/kubectl"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.t.Fatalf("uninstall: %v\n%s", err, out)
	}
	if strings.Contains(string(out), "warning") {
		s.t.Errorf("uninstall warns:\n%s", out)
	}
	if got := s.getInstance(); got.UID != running || got.DeletionTimestamp != nil {
		s.t.Errorf("the instance had the UID %s, and has %s, deleted at %v", running, got.UID, got.DeletionTimestamp)
	}
	if got := s.runInGuest("echo alive"); strings.TrimSpace(got) != "alive" {
		s.t.Errorf("the guest says %q", got)
	}
	if got := listKinds(); !slices.Equal(got, kubevirts) {
		s.t.Errorf("KubeVirt had the kinds %v, and has %v", kubevirts, got)
	}
	s.checkUninstalled()
}

func isKubeVirts(name string) bool { return strings.HasSuffix(name, ".kubevirt.io") }

// checkUninstalled checks that no object of an installation is left in the cluster. The namespace stays, with the
// passwords of repositories.
func (s *scene) checkUninstalled() {
	s.t.Helper()
	isVarves := func(name string) bool { return strings.HasPrefix(name, "varve") }
	const rbac, admission = "rbac.authorization.k8s.io/v1", "admissionregistration.k8s.io/v1"
	for _, k := range []struct {
		version, kind string
		named         func(name string) bool
	}{
		{"apiextensions.k8s.io/v1", "CustomResourceDefinition", func(name string) bool {
			return slices.ContainsFunc([]string{".harvesterhci.io", ".varvebackup.io", ".velero.io", ".longhorn.io"},
				func(group string) bool { return strings.HasSuffix(name, group) })
		}},
		{rbac, "ClusterRole", isVarves},
		{rbac, "ClusterRoleBinding", isVarves},
		{rbac, "Role", isVarves},
		{rbac, "RoleBinding", isVarves},
		{admission, "ValidatingAdmissionPolicy", isVarves},
		{admission, "ValidatingAdmissionPolicyBinding", isVarves},
		{admission, "ValidatingWebhookConfiguration", isVarves},
		{admission, "MutatingWebhookConfiguration", isVarves},
		{"storage.k8s.io/v1", "CSIDriver", func(name string) bool {
			return strings.HasSuffix(name, "varvebackup.io") && !strings.Contains(name, ".box.")
		}},
		{"storage.k8s.io/v1", "StorageClass", isVarves},
		{"scheduling.k8s.io/v1", "PriorityClass", isVarves},
	} {
		if left := s.listNames(k.version, k.kind, k.named); len(left) > 0 {
			s.t.Errorf("%s is left: %v", k.kind, left)
		}
	}
	s.mustSucceed(wait.For(s.t.Context(), time.Minute, "Varve's pods to be gone",
		func(ctx context.Context) (bool, string, error) {
			var pods corev1.PodList
			err := s.List(ctx, &pods, client.InNamespace(layout.Namespace))
			return len(pods.Items) == 0, fmt.Sprintf("%d pods", len(pods.Items)), err
		}))
}

// listNames returns those names of a kind's objects for which is returns true, without objects that are being deleted.
func (s *scene) listNames(version, kind string, is func(name string) bool) []string {
	s.t.Helper()
	objects, err := s.listObjects(s.t.Context(), version, kind)
	s.mustSucceed(err)
	var names []string
	for i := range objects {
		if name := objects[i].GetName(); is(name) && objects[i].GetDeletionTimestamp() == nil {
			names = append(names, name)
		}
	}
	return names
}
