// Package machinebackup has what commands for backups of whole machines share, for one backup or for those of a
// schedule: what a user chooses for them, and how far one is.
package machinebackup

import (
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/cli/failure"
)

// Choices are what the flags say.
type Choices struct {
	location string
	exclude  []string
	noFreeze bool
	// snapshot makes snapshots by the machine's own storage, whose guest is frozen for freezeDeadline at the most.
	snapshot       bool
	freezeDeadline time.Duration
}

// AddFlags adds the flags to a command.
func (o *Choices) AddFlags(c *cobra.Command) {
	c.Flags().StringVar(&o.location, "location", "",
		"the backup storage location in Varve's namespace (default: the default one)")
	c.Flags().StringSliceVar(&o.exclude, "exclude", nil,
		"volumes of the machine that are left out, such as scratch,swap")
	c.Flags().BoolVar(&o.noFreeze, "no-freeze", false,
		"do not freeze the guest's file systems for the moment that is stored")
	c.Flags().BoolVar(&o.snapshot, "snapshot", false, "take snapshots in the machine's own storage, without a location")
	c.Flags().DurationVar(&o.freezeDeadline, "freeze-deadline", 0,
		"with --snapshot: how long the guest's file systems may be frozen (default: 30s)")
}

// Check refuses flags that exclude each other. made is what the command makes: "a backup" or "backups".
func (o *Choices) Check(made string) error {
	switch {
	case o.snapshot && o.location != "":
		return failure.Usage("--location is for %s: a --snapshot stays in the storage of its machine", made)
	case !o.snapshot && o.freezeDeadline != 0:
		return failure.Usage("--freeze-deadline is for a --snapshot: a backup holds the freeze for milliseconds, " +
			"and for 30 s at the most")
	case o.noFreeze && o.freezeDeadline != 0:
		return failure.Usage("--no-freeze and --freeze-deadline exclude each other")
	case o.freezeDeadline < 0:
		return failure.Usage("--freeze-deadline %s must not be negative", o.freezeDeadline)
	}
	return nil
}

// Spec returns the spec of a backup of a machine.
func (o *Choices) Spec(machine string) harvesterv1.VirtualMachineBackupSpec {
	spec := harvesterv1.VirtualMachineBackupSpec{Source: MachineReference(machine), Type: harvesterv1.Backup}
	if o.snapshot {
		spec.Type = harvesterv1.Snapshot
	}
	if o.freezeDeadline > 0 {
		spec.FSFreezeDeadline = &metav1.Duration{Duration: o.freezeDeadline}
	}
	return spec
}

// Annotations returns the annotations of a backup, or of a schedule of backups.
func (o *Choices) Annotations() map[string]string {
	annotations := map[string]string{}
	if o.location != "" {
		annotations[harvesterv1.AnnotationLocation] = o.location
	}
	if len(o.exclude) > 0 {
		annotations[harvesterv1.AnnotationExcludeVolumes] = strings.Join(o.exclude, ",")
	}
	if o.noFreeze {
		annotations[harvesterv1.AnnotationFreeze] = "false"
	}
	return annotations
}

// MachineReference names a virtual machine.
func MachineReference(name string) corev1.TypedLocalObjectReference {
	return corev1.TypedLocalObjectReference{
		APIGroup: ptr.To(kubevirtv1.GroupVersion.Group), Kind: harvesterv1.SourceKind, Name: name,
	}
}
