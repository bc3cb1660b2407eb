//go:build controlplane

package kubevirtbackup

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/controlplane"
	"github.com/varvebackup/varve/test/gen"
)

// own gives the lab its own configuration, with a limit of backups per node.
func (l *lab) own(limit string) *kubevirtv1.KubeVirt {
	l.Helper()
	kv := controlplane.DefaultKubeVirt()
	kv.ObjectMeta = l.named("kubevirt")
	kv.Annotations = map[string]string{layout.AnnotationCopiesPerNode: limit}
	l.must(l.user.Create(l.Context(), kv))
	l.configuration = types.NamespacedName{Namespace: l.ns, Name: kv.Name}
	l.restart()
	return kv
}

// neighbour makes another machine on the same node, and a backup of that machine.
func (l *lab) neighbour(name string) *backupv1.VirtualMachineBackup {
	l.Helper()
	l.must(l.user.Create(l.Context(), gen.VirtualMachine(l.named(name), diskSpec())))
	vmi := gen.VirtualMachineInstance(l.named(name), diskSpec())
	l.must(l.user.Create(l.Context(), vmi))
	controlplane.Update(l.T, l.varve, vmi, true, func(i *kubevirtv1.VirtualMachineInstance) { i.Status = *l.vmi.Status.DeepCopy() })
	b := gen.Backup(l.named(name), gen.SetSource(name))
	l.must(l.user.Create(l.Context(), b))
	return b
}

func TestNodeBusy_boundsCopiesAndTheOldestGoesFirst(t *testing.T) {
	t.Parallel()
	l := newLab(t, Limits{})
	kv := l.own("1")
	l.claim("target", corev1.PersistentVolumeFilesystem)
	first := l.backup("first", "")
	l.reaches(first, backupv1.BackupAttaching, "")
	// The names sort against the expected order, because age counts, in whole seconds.
	second := l.neighbour("z-second")
	l.reaches(second, backupv1.BackupPending, backupv1.ReasonNodeBusy)
	controlplane.Eventually(t, func() error {
		if time.Now().Unix() == second.CreationTimestamp.Unix() {
			return fmt.Errorf("the same second")
		}
		return nil
	})
	third := l.neighbour("a-third")
	l.reaches(third, backupv1.BackupPending, backupv1.ReasonNodeBusy)
	for _, b := range []*backupv1.VirtualMachineBackup{second, third} {
		if len(b.Finalizers) != 0 || !strings.Contains(b.Status.Message, "node-1") || b.Status.PhaseDeadline == nil {
			t.Errorf("%s waits with finalizers %v, deadline %v: %s", b.Name, b.Finalizers, b.Status.PhaseDeadline, b.Status.Message)
		}
	}
	l.mount(1)
	l.reaches(first, backupv1.BackupStarting, "")
	l.node(first, copying)
	l.node(first, copied)
	l.reaches(second, backupv1.BackupAttaching, "")
	l.reaches(third, backupv1.BackupPending, backupv1.ReasonNodeBusy)
	controlplane.Update(t, l.user, kv, false, func(kv *kubevirtv1.KubeVirt) { kv.Annotations[layout.AnnotationCopiesPerNode] = "2" })
	l.reaches(third, backupv1.BackupAttaching, "")
}

// A backup whose finalizer somebody removes never gives back its place itself.
func TestNodeBusy_placesOfBackupsThatVanishAreFree(t *testing.T) {
	t.Parallel()
	l := newLab(t, Limits{})
	l.own("1")
	l.claim("target", corev1.PersistentVolumeFilesystem)
	first := l.backup("first", "")
	l.reaches(first, backupv1.BackupAttaching, "")
	// Nothing has looked at the node's places since the first one was granted.
	l.vanish(first)
	second := l.neighbour("second")
	l.reaches(second, backupv1.BackupAttaching, "")
	// A backup that waits is woken.
	third := l.neighbour("third")
	l.reaches(third, backupv1.BackupPending, backupv1.ReasonNodeBusy)
	l.vanish(second)
	l.reaches(third, backupv1.BackupAttaching, "")
}

// vanish removes a backup's finalizer and deletes the backup before the controller can add the finalizer again.
func (l *lab) vanish(b *backupv1.VirtualMachineBackup) {
	l.Helper()
	admin := cluster.Client(l.T, controlplane.Admin)
	controlplane.Eventually(l.T, func() error {
		if err := l.read(b); err != nil {
			return err
		}
		b.Finalizers = nil
		if err := admin.Update(l.Context(), b); err != nil {
			return err
		}
		return admin.Delete(l.Context(), b, client.Preconditions{ResourceVersion: &b.ResourceVersion})
	})
	l.goes(b)
}

// The first in line is of the machine only by its tracker. When that goes, the next one is first.
func TestLine_aTrackerThatGoesTakesItsBackupOut(t *testing.T) {
	t.Parallel()
	l := newLab(t, Limits{})
	l.claim("target", corev1.PersistentVolumeFilesystem)
	l.must(l.user.Delete(t.Context(), l.vmi))
	l.goes(l.vmi)
	tracker := l.tracker("tracker")
	first := l.backup("first", "tracker")
	l.reaches(first, backupv1.BackupPending, backupv1.ReasonVMNotRunning)
	controlplane.Eventually(t, func() error { // ages count in whole seconds
		if time.Now().Unix() == first.CreationTimestamp.Unix() {
			return fmt.Errorf("the same second")
		}
		return nil
	})
	second := l.backup("second", "")
	l.reaches(second, backupv1.BackupPending, backupv1.ReasonOtherBackup)
	l.must(l.user.Delete(t.Context(), tracker))
	l.reaches(first, backupv1.BackupPending, backupv1.ReasonTrackerNotFound)
	l.reaches(second, backupv1.BackupPending, backupv1.ReasonVMNotRunning)
}
