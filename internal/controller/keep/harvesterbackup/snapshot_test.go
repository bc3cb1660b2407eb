package harvesterbackup

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	vmsnapshotv1 "github.com/varvebackup/varve/api/snapshot/v1beta1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/test/gen"
)

// snapshotInput is a stopped machine with one disk, of which a snapshot is taken. There is no location.
func snapshotInput(t *testing.T) *input {
	t.Helper()
	in := stoppedInput(t)
	in.backup.Spec.Type, in.locations = harvesterv1.Snapshot, nil
	return in
}

func TestPlan_snapshotNeedsNoLocation(t *testing.T) {
	t.Parallel()
	in := snapshotInput(t)
	p := makePlan(in)
	if p.status == nil || p.status.Location != nil || len(p.status.VolumeBackups) != 1 || p.status.Stopped == nil {
		t.Fatalf("%+v", p)
	}
	if v := p.status.VolumeBackups[0]; v.VolumeName != "root" || v.DataUpload != "" || p.status.SourceUID == nil ||
		p.status.ScratchBytes != 0 {
		t.Errorf("%+v", p.status)
	}
	in.pods = []corev1.Pod{*gen.Pod(gen.Meta("app", "fsck"), func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "web-root"},
		}}}
	})}
	if p := makePlan(in); !strings.HasPrefix(p.waiting,
		"pod fsck to end, which can write to PersistentVolumeClaim web-root") {
		t.Errorf("%+v", p)
	}
	in.earlier = "sunday"
	if p := makePlan(in); !strings.HasPrefix(p.waiting, "VirtualMachineBackup sunday of the machine to end") {
		t.Errorf("%+v", p)
	}
}

// A snapshot of a machine that runs needs no tracking, and its number of disks is that of the machine.
func TestPlan_snapshotNeedsNoTracking(t *testing.T) {
	t.Parallel()
	in := snapshotInput(t)
	vm := in.stopped
	in.stopped = nil
	in.instance = &kubevirtv1.VirtualMachineInstance{Spec: vm.Spec.Template.Spec}
	in.instance.Status.Phase, in.instance.Status.NodeName = kubevirtv1.PhaseRunning, "n1"
	if p := makePlan(in); p.status == nil || p.status.NodeName != "n1" {
		t.Errorf("%+v", p)
	}
	in.backup.Spec.Type = harvesterv1.Backup
	if p := makePlan(in); !strings.Contains(p.refused, "are not tracked") {
		t.Errorf("%+v", p)
	}
}

func TestPlan_snapshotMayHaveManyDisks(t *testing.T) {
	t.Parallel()
	in := snapshotInput(t)
	volumes, claim := []any{}, in.claims["web-root"]
	in.stopped.Spec.Template.Spec = gen.Guest()
	for i := range datamove.MaxGroupDisks + 1 {
		name := fmt.Sprint("disk", i)
		gen.Disk(name, name)(&in.stopped.Spec.Template.Spec)
		in.claims[name] = claim.DeepCopy()
		volumes = append(volumes, map[string]any{"name": name})
	}
	spec := in.machine.Object["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)
	spec["volumes"] = volumes
	if p := makePlan(in); p.status == nil || len(p.status.VolumeBackups) != datamove.MaxGroupDisks+1 {
		t.Errorf("%+v", p)
	}
}

func TestPlan_refusesWhatASnapshotHasNot(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		harvesterv1.AnnotationLocation, harvesterv1.AnnotationSnapshotID, harvesterv1.AnnotationScratchClass,
		harvesterv1.AnnotationScratchSize,
	} {
		in := snapshotInput(t)
		in.backup.Annotations = map[string]string{name: "x"}
		if p := makePlan(in); !strings.HasPrefix(p.refused, "the annotation "+name+" is for type backup") {
			t.Errorf("%+v", p)
		}
	}
}

// What is taken must be what was planned.
func TestDescribeTaken(t *testing.T) {
	t.Parallel()
	planned := func(volume, claim string) harvesterv1.VolumeBackup {
		v := harvesterv1.VolumeBackup{VolumeName: volume}
		v.PersistentVolumeClaim.ObjectMeta.Name = claim
		return v
	}
	taken := func(volume, claim string) vmsnapshotv1.VolumeBackup {
		v := vmsnapshotv1.VolumeBackup{VolumeName: volume, VolumeSnapshotName: ptr.To("s-" + volume)}
		v.PersistentVolumeClaim.ObjectMeta.Name = claim
		return v
	}
	for name, c := range map[string]struct {
		taken []vmsnapshotv1.VolumeBackup
		words string
	}{
		"as planned": {[]vmsnapshotv1.VolumeBackup{taken("root", "a"), taken("iso", "c")}, ""},
		"with the machine's state, as KubeVirt's": {
			[]vmsnapshotv1.VolumeBackup{taken("root", "a"), taken("persistent-state-for-web", "p")}, "",
		},
		"one is missing": {nil, "volume root (PersistentVolumeClaim a) is not in VirtualMachineSnapshot g"},
		"on another claim": {
			[]vmsnapshotv1.VolumeBackup{taken("root", "b")},
			"volume root (PersistentVolumeClaim a) is not in",
		},
		"without VolumeSnapshot": {
			[]vmsnapshotv1.VolumeBackup{{VolumeName: "root"}},
			"volume root (PersistentVolumeClaim a) is not in",
		},
		"one was added": {
			[]vmsnapshotv1.VolumeBackup{taken("root", "a"), taken("new", "d")},
			"volume new was added to the machine",
		},
	} {
		b := &harvesterv1.VirtualMachineBackup{Status: harvesterv1.VirtualMachineBackupStatus{
			Group: "g", SourceUID: ptr.To(types.UID("m")),
			VolumeBackups:   []harvesterv1.VolumeBackup{planned("root", "a")},
			ExcludedVolumes: []harvesterv1.ExcludedVolume{{Name: "iso", Reason: harvesterv1.ReadOnly}},
		}}
		s := newSnapshot(b)
		s.Status = &vmsnapshotv1.VirtualMachineSnapshotStatus{SourceUID: ptr.To(types.UID("m"))}
		content := &vmsnapshotv1.VirtualMachineSnapshotContent{}
		content.Spec.VolumeBackups = c.taken
		got := describeTaken(b, s, content)
		if c.words == "" && got != "" || !strings.HasPrefix(got, c.words) {
			t.Errorf("%s: %q, want %q", name, got, c.words)
		}
	}
}

// kindless is an API server that does not have a kind.
type kindless struct{ client.Reader }

func (kindless) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return &meta.NoKindMatchError{GroupKind: vmsnapshotv1.GroupVersion.WithKind("VirtualMachineSnapshot").GroupKind()}
}

// A cluster whose KubeVirt has no snapshots: the backup fails, and can be deleted.
func TestSnapshot_kindIsNotInstalled(t *testing.T) {
	t.Parallel()
	r := &reconciler{live: kindless{}}
	b := &harvesterv1.VirtualMachineBackup{Status: harvesterv1.VirtualMachineBackupStatus{Group: "g"}}
	_, refused, err := r.makeSnapshot(t.Context(), b)
	if err != nil || !strings.HasPrefix(refused,
		"the cluster does not have the kind VirtualMachineSnapshot of snapshot.kubevirt.io") {
		t.Errorf("%q %v", refused, err)
	}
	left, err := r.deleteSnapshot(t.Context(), b)
	if diff := cmp.Diff("", left); diff != "" || err != nil {
		t.Errorf("%s %v", diff, err)
	}
}
