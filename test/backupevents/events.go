// Package backupevents lists the events that end a backup and that both the controller and the handler can see first.
// Which of them writes the backup's status depends on a race, so the tests of both components expect the same words.
package backupevents

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/backupstate"
)

// Event is something that ends a backup in Copying.
type Event struct {
	Name string
	// Happen changes the backup and its instance as the API server shows them afterwards. It returns the instance of
	// the machine's name that exists then, or nil.
	Happen func(*backupv1.VirtualMachineBackup, *kubevirtv1.VirtualMachineInstance) *kubevirtv1.VirtualMachineInstance
	// Want is what the backup's status says then. A component may add sentences about what it knows besides.
	Want backupstate.State
}

// All returns the events of a backup of a machine. The machine itself exists all the time.
func All(backup, machine string) []Event {
	return []Event{
		{"the backup is deleted", func(b *backupv1.VirtualMachineBackup, i *kubevirtv1.VirtualMachineInstance) *kubevirtv1.VirtualMachineInstance {
			b.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
			return i
		}, backupstate.Aborted(backup)},
		{"the instance is deleted", func(*backupv1.VirtualMachineBackup, *kubevirtv1.VirtualMachineInstance) *kubevirtv1.VirtualMachineInstance {
			return nil
		}, backupstate.InstanceDeleted(machine)},
		{"the instance is replaced", func(_ *backupv1.VirtualMachineBackup, i *kubevirtv1.VirtualMachineInstance) *kubevirtv1.VirtualMachineInstance {
			i = i.DeepCopy()
			i.UID = "another"
			return i
		}, backupstate.InstanceReplaced(machine)},
		{"the guest shuts down", func(_ *backupv1.VirtualMachineBackup, i *kubevirtv1.VirtualMachineInstance) *kubevirtv1.VirtualMachineInstance {
			i.Status.Phase = kubevirtv1.PhaseSucceeded
			return i
		}, backupstate.GuestShutdown(machine, "")},
		{"the guest crashes", func(_ *backupv1.VirtualMachineBackup, i *kubevirtv1.VirtualMachineInstance) *kubevirtv1.VirtualMachineInstance {
			i.Status.Phase = kubevirtv1.PhaseFailed
			return i
		}, backupstate.GuestCrashed(machine, "")},
		{"the guest crashes for a known reason", func(_ *backupv1.VirtualMachineBackup, i *kubevirtv1.VirtualMachineInstance) *kubevirtv1.VirtualMachineInstance {
			i.Status.Phase, i.Status.Reason = kubevirtv1.PhaseFailed, "QEMUDied"
			return i
		}, backupstate.GuestCrashed(machine, "QEMUDied")},
	}
}
