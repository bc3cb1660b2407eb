package virtualmachineinstance

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/layout"
)

// usage is how a machine uses a volume.
type usage int

const (
	written usage = iota
	shareable
	onlyRead
	// mountedReadOnly: the pod cannot write to it, whatever the disk says.
	mountedReadOnly
	// noDisk: no disk uses the volume.
	noDisk
)

// withVolumes gives the instance volumes a, b and c on one claim.
func withVolumes(i *kubevirtv1.VirtualMachineInstance, claim string, usages ...usage) {
	for n, u := range usages {
		name := string(rune('a' + n))
		i.Spec.Volumes = append(i.Spec.Volumes, kubevirtv1.Volume{Name: name, PersistentVolumeClaim: &kubevirtv1.PersistentVolumeClaimVolumeSource{
			PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim, ReadOnly: u == mountedReadOnly},
		}})
		if u != noDisk {
			disk := kubevirtv1.Disk{Name: name, Disk: &kubevirtv1.DiskTarget{ReadOnly: u == onlyRead}, Shareable: ptr.To(u == shareable)}
			i.Spec.Domain.Devices.Disks = append(i.Spec.Domain.Devices.Disks, disk)
		}
	}
}

// The claim's record protects the disks of two machines from each other. It does not keep two disks of one machine
// from overwriting each other.
func TestTakeClaims_holdsAMachineWithTwoDisksOnOneClaim(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		volumes []usage
		want    string // the volumes that the obstacle names, or empty if they may share the claim
	}{
		"both written":                       {[]usage{written, written}, "a and b"},
		"shareable in the first alone":       {[]usage{shareable, written}, "a and b"},
		"shareable in the second alone":      {[]usage{written, shareable}, "a and b"},
		"shareable in two of three":          {[]usage{shareable, written, shareable}, "a and b and c"},
		"shareable in both":                  {[]usage{shareable, shareable}, ""},
		"shareable in both, and one to read": {[]usage{onlyRead, shareable, shareable}, ""},
		"one to write and one to read":       {[]usage{written, onlyRead}, ""},
		"two to write and one to read":       {[]usage{onlyRead, written, written}, "b and c"},
		"one that is mounted read-only":      {[]usage{written, mountedReadOnly}, ""},
		"a volume without a disk":            {[]usage{written, noDisk}, "a and b"},
	} {
		instance := instanceIn(pending)
		withVolumes(instance, "root", c.volumes...)
		takeClaimsSays(t, name, instance, "root", c.want)
	}
	tracked := instanceIn(pending)
	tracked.Annotations = map[string]string{layout.AnnotationTracking: "true"}
	withVolumes(tracked, layout.StatePVC("vm"), written)
	takeClaimsSays(t, "a disk on the claim of its own overlays", tracked, layout.StatePVC("vm"), "a and the overlays")
}

func takeClaimsSays(t *testing.T, name string, instance *kubevirtv1.VirtualMachineInstance, claim, volumes string) {
	t.Helper()
	r := &reconciler{live: hasPod{}} // no claim exists: an instance that its own disks do not hold back waits for the claim
	_, o, err := r.takeClaims(t.Context(), instance, nil)
	switch {
	case err != nil || o == nil:
		t.Errorf("%s: %+v, %v", name, o, err)
	case volumes == "" && o.Reason != ReasonClaimNotFound,
		volumes != "" && (o.Reason != ReasonClaimInUse || !strings.Contains(o.Message, "PersistentVolumeClaim "+claim+" is used by "+volumes+",")):
		t.Errorf("%s: %+v, want claim %s used by %q", name, *o, claim, volumes)
	}
}
