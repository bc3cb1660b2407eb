//go:build controlplane

package kubevirtbackup

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/controlplane"
	"github.com/varvebackup/varve/test/gen"
)

// stopped makes a machine without an instance.
func (l *lab) stopped(name, claim string) {
	l.Helper()
	l.must(l.user.Create(l.Context(), gen.VirtualMachine(l.named(name), gen.Guest(gen.Disk("root", claim)), gen.SetRunStrategy(kubevirtv1.RunStrategyHalted))))
}

// running makes an instance without a machine.
func (l *lab) running(name, claim string) {
	l.Helper()
	l.must(l.user.Create(l.Context(), gen.VirtualMachineInstance(l.named(name), gen.Guest(gen.Disk("root", claim)))))
}

// A machine's disk cannot be a target, whether the instance or only the machine names it. A running copy gives way
// only to a guest.
func TestClaimUsers_keepTheirDisks(t *testing.T) {
	t.Parallel()
	l := newLab(t, Limits{})
	l.stopped("stopped", "of-stopped")
	l.running("running", "of-running")
	controlplane.Eventually(t, func() error {
		return errors.Join(
			l.cached.Get(t.Context(), client.ObjectKey{Namespace: l.ns, Name: "stopped"}, &kubevirtv1.VirtualMachine{}),
			l.cached.Get(t.Context(), client.ObjectKey{Namespace: l.ns, Name: "running"}, &kubevirtv1.VirtualMachineInstance{}),
		)
	})
	for claim, says := range map[string]string{
		"of-stopped":               "is disk root of VirtualMachine stopped",
		"of-running":               "is disk root of VirtualMachine running",
		layout.StatePVC("stopped"): "record of changes",
	} {
		l.claim(claim, corev1.PersistentVolumeFilesystem)
		b := gen.Backup(l.named("to-"+claim), gen.SetTarget(claim))
		l.must(l.user.Create(t.Context(), b))
		l.reaches(b, backupv1.BackupFailed, backupv1.ReasonTargetInUse)
		if !strings.Contains(b.Status.Message, says) || len(b.Finalizers) > 0 {
			t.Errorf("%s: %s, finalizers %v", claim, b.Status.Message, b.Finalizers)
		}
	}
	b := l.backup("b", "")
	l.bring(b, backupv1.BackupCopying)
	l.stopped("later", "target")
	controlplane.Eventually(t, func() error {
		return l.cached.Get(t.Context(), client.ObjectKey{Namespace: l.ns, Name: "later"}, &kubevirtv1.VirtualMachine{})
	})
	l.running("rescue", "target")
	l.finish(b, backupv1.BackupFailed, backupv1.ReasonTargetInUse)
	if !strings.Contains(b.Status.Message, "VirtualMachine rescue began to use the target") {
		t.Errorf("message: %s", b.Status.Message)
	}
}
