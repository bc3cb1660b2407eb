package harvesterbackup

import (
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	vmsnapshotv1 "github.com/varvebackup/varve/api/snapshot/v1beta1"
)

// KubeVirt's own VirtualMachineSnapshots differ from Varve's in what they do with a guest and with volumes. KubeVirt
// always freezes a guest whose agent answers, and thaws it when all VolumeSnapshots are taken, or, if nobody does that,
// after the snapshot's failureDeadline. It leaves no volume out whose storage makes snapshots, and adds the claim with
// the machine's state.

// KubeVirt's feature gates that a backup may need. None is on by itself in KubeVirt 1.8.
const (
	gateSnapshot = "Snapshot"
	gateExport   = "VMExport"
)

// freezeDeadline is how long KubeVirt may take until all VolumeSnapshots of a machine are taken, which is as long as
// its guest may be frozen. It is KubeVirt's default.
const freezeDeadline = 5 * time.Minute

// stateVolumePrefix begins the name that KubeVirt gives to the volume with the state of a machine.
const stateVolumePrefix = "persistent-state-for-"

// refuseSnapshot says what KubeVirt does not do when it makes a snapshot, or nil.
func (in *input) refuseSnapshot() *plan {
	if !in.beside || in.backup.Annotations[harvesterv1.AnnotationFreeze] != "false" {
		return nil
	}
	p := refusePlan("the annotation %s is \"false\", and KubeVirt freezes the guest of each snapshot if its agent "+
		"answers: leave the annotation out", harvesterv1.AnnotationFreeze)
	return &p
}

// limitFreeze bounds how long KubeVirt's snapshot of a machine may freeze its guest.
func limitFreeze(b *harvesterv1.VirtualMachineBackup, s *vmsnapshotv1.VirtualMachineSnapshot) {
	s.Spec.FailureDeadline = &metav1.Duration{Duration: freezeDeadline}
	if asked := b.Spec.FSFreezeDeadline; asked != nil && asked.Duration > 0 {
		s.Spec.FailureDeadline.Duration = min(asked.Duration, freezeDeadline)
	}
}

// nameGate adds to a refusal for a feature gate which one it is. KubeVirt's own message does not name it as users write it.
func (r *reconciler) nameGate(refused, gate string) string {
	if !r.BesideKubeVirt || !strings.Contains(refused, "feature gate") {
		return refused
	}
	return fmt.Sprintf("%s. KubeVirt needs its feature gate %s for this: add it to "+
		"spec.configuration.developerConfiguration.featureGates of the KubeVirt object, and create another backup",
		strings.TrimSuffix(refused, "."), gate)
}
