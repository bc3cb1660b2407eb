package backupstate

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/internal/layout"
)

// Component is a program that writes the status of backups.
type Component string

// Components.
const (
	// Controller is varve-controller. It sees all objects and no launcher.
	Controller Component = "controller"
	// Handler is varve-handler on the guest's node. It sees the instance and the launcher.
	Handler Component = "handler"
)

// Phase says who takes a backup out of a phase, and where to.
type Phase struct {
	Name backupv1.BackupPhase
	// Owner is the component that ends the phase. It is empty for a final phase.
	Owner Component
	// Next are the phases that the owner may write.
	Next []backupv1.BackupPhase
	// GivenUp is the phase that the controller writes if the handler, which owns this phase, cannot or does not end
	// it. It is empty for a phase that the handler does not own.
	GivenUp backupv1.BackupPhase
	// Condition is the type of the condition that is True in this phase.
	Condition string
	// Copies says that the backup counts towards its node's limit. One that clients read does not: it may wait for them for
	// hours.
	Copies bool
	// NeedsGuest says that the backup needs the running guest. Such a backup delays a stop of the guest.
	NeedsGuest bool
}

// phases has each phase once, in the order in which a backup goes through them.
var phases = []Phase{
	{
		Name: backupv1.BackupPending, Owner: Controller, Condition: backupv1.ConditionInitializing,
		Next: []backupv1.BackupPhase{backupv1.BackupAttaching, backupv1.BackupFailed},
	},
	{
		Name: backupv1.BackupAttaching, Owner: Controller, Condition: backupv1.ConditionInitializing, Copies: true, NeedsGuest: true,
		// Back to Pending if a prerequisite goes away, and to Pruned if the backup fails: the node was not told of it.
		Next: []backupv1.BackupPhase{backupv1.BackupStarting, backupv1.BackupPending, backupv1.BackupPruned},
	},
	{
		Name: backupv1.BackupStarting, Owner: Handler, Condition: backupv1.ConditionInitializing, Copies: true, NeedsGuest: true,
		Next:    []backupv1.BackupPhase{backupv1.BackupCopying, backupv1.BackupServing, backupv1.BackupCopied, backupv1.BackupCopyFailed},
		GivenUp: backupv1.BackupCopyFailed,
	},
	{
		Name: backupv1.BackupCopying, Owner: Handler, Condition: backupv1.ConditionProgressing, Copies: true, NeedsGuest: true,
		Next:    []backupv1.BackupPhase{backupv1.BackupCopied, backupv1.BackupCopyFailed},
		GivenUp: backupv1.BackupCopyFailed,
	},
	{
		Name: backupv1.BackupServing, Owner: Handler, Condition: backupv1.ConditionProgressing, NeedsGuest: true,
		Next:    []backupv1.BackupPhase{backupv1.BackupCopied, backupv1.BackupCopyFailed},
		GivenUp: backupv1.BackupCopyFailed,
	},
	{
		Name: backupv1.BackupCopied, Owner: Controller, Condition: backupv1.ConditionProgressing,
		Next: []backupv1.BackupPhase{backupv1.BackupPruning},
	},
	{
		Name: backupv1.BackupCopyFailed, Owner: Controller, Condition: backupv1.ConditionProgressing,
		Next: []backupv1.BackupPhase{backupv1.BackupPruning},
	},
	{
		Name: backupv1.BackupPruning, Owner: Handler, Condition: backupv1.ConditionProgressing,
		Next:    []backupv1.BackupPhase{backupv1.BackupPruned},
		GivenUp: backupv1.BackupPruned,
	},
	{
		Name: backupv1.BackupPruned, Owner: Controller, Condition: backupv1.ConditionProgressing,
		Next: []backupv1.BackupPhase{backupv1.BackupDone, backupv1.BackupFailed},
	},
	{Name: backupv1.BackupDone, Condition: backupv1.ConditionComplete},
	{Name: backupv1.BackupFailed, Condition: backupv1.ConditionFailed},
}

// FindPhase returns the description of a phase. A backup without a phase is Pending. The description of an unknown
// phase, for example after a downgrade, has no owner and the condition Progressing.
func FindPhase(name backupv1.BackupPhase) Phase {
	if name == "" {
		name = backupv1.BackupPending
	}
	i := slices.IndexFunc(phases, func(p Phase) bool { return p.Name == name })
	if i < 0 {
		return Phase{Name: name, Condition: backupv1.ConditionProgressing}
	}
	return phases[i]
}

// MayWrite reports whether a component may take a backup from one phase to another, or leave it where it is.
func MayWrite(writer Component, from, to backupv1.BackupPhase) bool {
	p := FindPhase(from)
	switch p.Owner {
	case "":
		return false
	case writer:
		return to == p.Name || slices.Contains(p.Next, to)
	default: // The controller supervises the handler: it writes deadlines and conditions in the handler's phases.
		return writer == Controller && (to == p.Name || to == p.GivenUp)
	}
}

// IsReadable reports whether the endpoints of a backup in pull mode answer. The controller does not change the condition after a
// deletion, so that it still says what was the case then.
func IsReadable(s *backupv1.VirtualMachineBackupStatus) bool {
	return s.Phase == backupv1.BackupServing && meta.IsStatusConditionTrue(s.Conditions, backupv1.ConditionReady)
}

// EndsWell reports whether the end of a backup in pull mode is a success if it is deleted now: somebody has its data. Whoever
// deletes a backup that clients read says so. Of one that DataUploads read, Varve's controller says it, because a deletion by
// anybody else says nothing about restore points.
func EndsWell(b *backupv1.VirtualMachineBackup) bool {
	if b.Spec.IsPulledByDataUploads() && b.Annotations[layout.AnnotationStored] != "true" {
		return false
	}
	return IsReadable(&b.Status)
}
