//go:build controlplane

package kubevirtbackup

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/test/controlplane"
	"github.com/varvebackup/varve/test/gen"
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

// A tenant has 5,000 backups of one machine in line. The next two are made, and the others cost nothing meanwhile: no request, and
// no backup of another namespace waits for them.
func TestScale_aLineOfThousandsCostsNothing(t *testing.T) {
	t.Parallel()
	const waiting = 5000
	l := newLab(t, Limits{})
	l.claim("target", corev1.PersistentVolumeFilesystem)
	l.stop()
	line := l.seedLine(waiting)
	l.traffic = &controlplane.Traffic{}
	l.start()
	for _, b := range line[:2] {
		l.toStarting(b)
		l.node(b, copying)
		l.node(b, copied)
		l.finish(b, backupv1.BackupDone, backupv1.ReasonCompleted)
	}
	l.reaches(line[2], backupv1.BackupAttaching, "")
	cost := l.traffic.Cost()
	t.Logf("two backups, and %d in line behind them: %s", waiting-2, cost)
	if len(cost.Requests) > 3*requestsPerBackup {
		t.Errorf("more than %d requests", 3*requestsPerBackup)
	}
	l.must(l.read(line[3]))
	if line[3].Status.Reason != backupv1.ReasonOtherBackup || !strings.Contains(line[3].Status.Message, line[2].Name) {
		t.Errorf("the next one says: %s", line[3].Status.Message)
	}
}

// seedLine stores n backups of the machine, all of which wait, as the controller leaves them. It returns the first few.
func (l *lab) seedLine(n int) []*backupv1.VirtualMachineBackup {
	l.Helper()
	now := time.Now().Truncate(time.Second)
	var objects []client.Object
	var first []*backupv1.VirtualMachineBackup
	var ahead *backupv1.VirtualMachineBackup
	for i := range n {
		b := gen.Backup(l.named(fmt.Sprintf("b-%05d", i)), gen.SetSource("vm"))
		b.UID, b.CreationTimestamp, b.Generation = types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", i)), metav1.NewTime(now), 1
		in := &input{Now: now, Limits: DefaultLimits(), Backup: b, VM: l.vm, Instance: l.vmi, Ahead: ahead}
		if ahead != nil {
			b.Status = *decide(in).Status
		}
		objects, ahead = append(objects, b), b
		if len(first) < 4 {
			first = append(first, &backupv1.VirtualMachineBackup{ObjectMeta: l.named(b.Name)})
		}
	}
	cluster.Seed(l.T, objects)
	return first
}
