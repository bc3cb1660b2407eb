//go:build controlplane

package kubevirtbackup

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	upstream "kubevirt.io/api/backup/v1alpha1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/test/controlplane"
)

// vendor is a client that knows the types of KubeVirt's released API and no others.
type vendor struct {
	*lab
	client client.Client
}

func newVendor(l *lab) *vendor {
	l.Helper()
	scheme := runtime.NewScheme()
	l.must(upstream.AddToScheme(scheme))
	c, err := client.New(cluster.ConfigFor(controlplane.Plain), client.Options{Scheme: scheme})
	l.must(err)
	return &vendor{lab: l, client: client.WithFieldValidation(c, "Strict")}
}

// create creates a backup as upstream's documentation does, and returns it in Varve's types, too.
func (v *vendor) create(name string, source corev1.TypedLocalObjectReference) (*upstream.VirtualMachineBackup, *backupv1.VirtualMachineBackup) {
	v.Helper()
	b := &upstream.VirtualMachineBackup{
		ObjectMeta: v.named(name),
		Spec:       upstream.VirtualMachineBackupSpec{Source: source, Mode: ptr.To(upstream.PushMode), PvcName: ptr.To("target")},
	}
	v.must(v.client.Create(v.Context(), b))
	ours := &backupv1.VirtualMachineBackup{ObjectMeta: v.named(name)}
	v.must(v.read(ours))
	return b, ours
}

// waitFor waits as upstream's clients do: until a condition is True.
func (v *vendor) waitFor(b *upstream.VirtualMachineBackup, condition string) {
	v.Helper()
	controlplane.Eventually(v.T, func() error {
		if err := v.client.Get(v.Context(), client.ObjectKeyFromObject(b), b); err != nil {
			return err
		}
		if b.Status != nil {
			for _, c := range b.Status.Conditions {
				if string(c.Type) == condition && c.Status == corev1.ConditionTrue {
					return nil
				}
			}
		}
		return fmt.Errorf("no condition %s: %+v", condition, b.Status)
	})
}

// A client of KubeVirt's released API creates trackers and backups with its own names, and finds what it waits for.
func TestBackup_clientsOfTheReleasedAPI(t *testing.T) {
	t.Parallel()
	l := newLab(t, Limits{})
	l.claim("target", corev1.PersistentVolumeFilesystem)
	v := newVendor(l)
	tracker := &upstream.VirtualMachineBackupTracker{
		ObjectMeta: l.named("tracker"),
		Spec: upstream.VirtualMachineBackupTrackerSpec{
			Source: corev1.TypedLocalObjectReference{APIGroup: ptr.To("kubevirt.io"), Kind: "VirtualMachine", Name: "vm"},
		},
	}
	l.must(v.client.Create(t.Context(), tracker))
	fromTracker := corev1.TypedLocalObjectReference{APIGroup: ptr.To("backup.kubevirt.io"), Kind: "VirtualMachineBackupTracker", Name: "tracker"}

	for _, want := range []upstream.BackupType{upstream.Full, upstream.Incremental} {
		b, ours := v.create(fmt.Sprintf("of-type-%.4s", map[upstream.BackupType]string{upstream.Full: "full", upstream.Incremental: "incr"}[want]), fromTracker)
		v.waitFor(b, string(upstream.ConditionInitializing))
		l.toStarting(ours)
		l.node(ours, copying)
		v.waitFor(b, string(upstream.ConditionProgressing))
		l.node(ours, func(s *backupv1.VirtualMachineBackupStatus) {
			copied(s)
			s.Type = s.BackupType
			s.IncludedVolumes[0].VolumeName, s.IncludedVolumes[0].DiskTarget = "root", "vda"
		})
		l.finish(ours, backupv1.BackupDone, backupv1.ReasonCompleted)
		v.waitFor(b, string(upstream.ConditionDone))
		v.waitFor(b, backupv1.ConditionComplete)
		if b.Status.Type != want || len(b.Status.IncludedVolumes) != 1 || b.Status.IncludedVolumes[0].VolumeName != "root" || ptr.Deref(b.Status.CheckpointName, "") == "" {
			t.Errorf("%+v", b.Status)
		}
		l.must(v.client.Get(t.Context(), client.ObjectKeyFromObject(tracker), tracker))
		c := tracker.Status.LatestCheckpoint
		if c == nil || c.Name != *b.Status.CheckpointName || c.CreationTime == nil || len(c.Volumes) != 1 || c.Volumes[0].VolumeName != "root" || c.Volumes[0].DiskTarget != "vda" {
			t.Errorf("tracker %+v", c)
		}
	}

	// A failure is Done, too, with what upstream's clients look for in its reason.
	full, ours := v.create("target-full", fromTracker)
	l.toStarting(ours)
	l.node(ours, failedWith(backupv1.ReasonTargetFull))
	l.finish(ours, backupv1.BackupFailed, backupv1.ReasonTargetFull)
	v.waitFor(full, string(upstream.ConditionDone))
	for _, c := range full.Status.Conditions {
		if failed := strings.HasPrefix(c.Reason, "Backup has failed: TargetFull: "); failed != (c.Type == upstream.ConditionDone) {
			t.Errorf("%+v", c)
		}
	}

	b, ours := v.create("of-a-machine", corev1.TypedLocalObjectReference{APIGroup: ptr.To("kubevirt.io"), Kind: "VirtualMachine", Name: "vm"})
	l.toStarting(ours)
	l.node(ours, copying)
	l.must(v.client.Delete(t.Context(), b))
	v.waitFor(b, string(upstream.ConditionAborting))
	l.node(ours, failedWith(backupv1.ReasonAborted))
	l.reaches(ours, backupv1.BackupPruning, "")
	l.node(ours, pruned)
	l.mount(0)
	l.goes(ours)

	for name, source := range map[string]corev1.TypedLocalObjectReference{
		"a tracker of the wrong group": {APIGroup: ptr.To("kubevirt.io"), Kind: "VirtualMachineBackupTracker", Name: "tracker"},
		"a machine of the wrong group": {APIGroup: ptr.To("backup.kubevirt.io"), Kind: "VirtualMachine", Name: "vm"},
		"no group":                     {Kind: "VirtualMachine", Name: "vm"},
	} {
		wrong := &upstream.VirtualMachineBackup{ObjectMeta: l.named("wrong"), Spec: upstream.VirtualMachineBackupSpec{Source: source, PvcName: ptr.To("target")}}
		if err := v.client.Create(t.Context(), wrong); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}
