package kubevirtbackup

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/internal/layout"
)

// Indexes of the cache. Those of backups have only the backups that have not ended, so that a history of thousands
// costs nothing.
const (
	// byMachine lists a backup under the machine that its spec names and under the one in its status.
	byMachine = "varve.machine"
	byTracker = "varve.tracker"
	byClaim   = "varve.claim"
	byVolume  = "varve.volume"
	byNode    = "varve.node"
	// trackersByMachine lists a tracker under its machine.
	trackersByMachine = "varve.trackers"
)

// checkpointField is a field of backups that the API server can select by.
const checkpointField = "status.checkpointName"

func addIndexes(ctx context.Context, indexer client.FieldIndexer) error {
	backup := &backupv1.VirtualMachineBackup{}
	for name, values := range map[string]func(*backupv1.VirtualMachineBackup) []string{
		byMachine: namedMachines,
		byTracker: func(b *backupv1.VirtualMachineBackup) []string { return []string{b.Spec.TrackerName()} },
		byClaim:   func(b *backupv1.VirtualMachineBackup) []string { return []string{b.Spec.PVCName} },
		byNode:    func(b *backupv1.VirtualMachineBackup) []string { return []string{b.Status.NodeName} },
		byVolume:  func(b *backupv1.VirtualMachineBackup) []string { return []string{layout.BackupUtilityVolume(b.UID)} },
	} {
		err := indexer.IndexField(ctx, backup, name, func(o client.Object) []string {
			if b := o.(*backupv1.VirtualMachineBackup); !b.Status.Phase.Final() {
				return values(b)
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("index backups as %s: %w", name, err)
		}
	}
	err := indexer.IndexField(ctx, &backupv1.VirtualMachineBackupTracker{}, trackersByMachine, func(o client.Object) []string {
		return []string{o.(*backupv1.VirtualMachineBackupTracker).Spec.Source.Name}
	})
	if err != nil {
		return fmt.Errorf("index trackers as %s: %w", trackersByMachine, err)
	}
	return nil
}

func namedMachines(b *backupv1.VirtualMachineBackup) []string {
	var machines []string
	if name := b.Spec.MachineName(); name != "" {
		machines = append(machines, name)
	}
	if name := b.Status.SourceName; name != "" && (len(machines) == 0 || machines[0] != name) {
		machines = append(machines, name)
	}
	return machines
}

// listUnfinished lists the cached backups that have not ended and that index has under value. They share memory with the
// cache, so nobody may change them.
func (a access) listUnfinished(ctx context.Context, namespace, index, value string) ([]backupv1.VirtualMachineBackup, error) {
	var list backupv1.VirtualMachineBackupList
	if err := a.cached.List(ctx, &list, client.InNamespace(namespace), client.MatchingFields{index: value}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list backups by %s: %w", index, err)
	}
	return list.Items, nil
}

// listUnfinishedOfMachine lists the machine's cached backups, including those that name it only through a tracker.
// Nobody may change them; see listUnfinished.
func (r *reconciler) listUnfinishedOfMachine(ctx context.Context, namespace, machine string) ([]backupv1.VirtualMachineBackup, error) {
	found, err := r.listUnfinished(ctx, namespace, byMachine, machine)
	if err != nil {
		return nil, err
	}
	var list backupv1.VirtualMachineBackupTrackerList
	if err := r.cached.List(ctx, &list, client.InNamespace(namespace), client.MatchingFields{trackersByMachine: machine}); err != nil {
		return nil, fmt.Errorf("list the trackers of %s: %w", machine, err)
	}
	trackers := map[string]*backupv1.VirtualMachineBackupTracker{}
	for i := range list.Items {
		t := &list.Items[i]
		trackers[t.Name] = t
		through, err := r.listUnfinished(ctx, namespace, byTracker, t.Name)
		if err != nil {
			return nil, err
		}
		found = append(found, through...)
	}
	backups := make([]backupv1.VirtualMachineBackup, 0, len(found))
	seen := make(map[string]bool, len(found))
	for i := range found {
		// A tracker of another machine is as good as none here.
		if b := &found[i]; !seen[b.Name] && machineNameOf(b, trackers[b.Spec.TrackerName()]) == machine {
			seen[b.Name] = true
			backups = append(backups, *b)
		}
	}
	return backups, nil
}
