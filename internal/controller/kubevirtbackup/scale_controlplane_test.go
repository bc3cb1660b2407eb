//go:build controlplane

package kubevirtbackup

import (
	"fmt"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/test/controlplane"
)

// What a backup costs the API server and the controller does not depend on how many backups and trackers there are.
// docs/scale.md states the formulas.
func TestScale_costOfABackupDoesNotDependOnHistory(t *testing.T) {
	t.Parallel()
	const ended = 5000
	for _, n := range []int{0, ended} {
		t.Run(fmt.Sprintf("%d ended", n), func(t *testing.T) {
			t.Parallel()
			l := newLab(t, Limits{})
			l.stop()
			cluster.Seed(t, controlplane.EndedBackups(l.ns, n))
			l.traffic = &controlplane.Traffic{}
			l.start()
			l.tracker("tracker")
			l.traffic.Reset()
			b := l.backup("b", "tracker")
			l.bring(b, backupv1.BackupDone)

			var cached backupv1.VirtualMachineBackupList
			controlplane.Eventually(t, func() error { // the backup that has just ended leaves the cache, too
				if err := l.cached.List(t.Context(), &cached, client.InNamespace(l.ns)); err != nil || len(cached.Items) > 0 {
					return fmt.Errorf("%d backups in memory (%v)", len(cached.Items), err)
				}
				return nil
			})
			cost := l.traffic.Cost()
			t.Logf("%d ended: %s", n, cost)
			if len(cost.Requests) > requestsPerBackup || cost.Bytes > bytesPerBackup || len(cost.Lists) > listsPerBackup {
				t.Errorf("more than %d requests, %d bytes or %d lists", requestsPerBackup, bytesPerBackup, listsPerBackup)
			}
		})
	}
}

// What docs/scale.md says about one undisturbed backup with a tracker.
const (
	requestsPerBackup = 160
	bytesPerBackup    = 256 << 10
	listsPerBackup    = 1
)
