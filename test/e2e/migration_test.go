//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1alpha1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/export/podspec"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/gen"
	"github.com/varvebackup/varve/test/lab"
	"github.com/varvebackup/varve/test/verdict"
	"github.com/varvebackup/varve/test/wait"
)

const migrationTimeout = 4 * time.Minute

// TestMigration moves a running guest to another node and back. The guest writes all the time, and the backups before
// and after are one chain.
func TestMigration(t *testing.T) {
	s := newScene(t, "migration")
	s.boot(
		lab.Disk{Name: "data", Bytes: 512 * mib, Shared: true},
		lab.Disk{Name: "raw", Bytes: 64 * mib, Block: true, Shared: true},
	)
	s.must(s.SharedClaim(t.Context(), "backups", 4*gib, corev1.PersistentVolumeFilesystem))
	s.tracker("daily")
	s.guest(`head -c 20000000 /dev/urandom >/disks/data/first; ` + rawDevice + `head -c 5000000 /dev/urandom | dd of=$raw bs=1M conv=notrunc; sync`)
	b1 := s.point(s.Backup("b1", "daily", "backups"), full)

	// It changes blocks before the migration, during it and afterwards. All must be in the next backup.
	s.guest(`head -c 3000000 /dev/urandom >/disks/data/before; ` + rawDevice + `head -c 1000000 /dev/urandom | dd of=$raw bs=1M seek=20 conv=notrunc; sync`)
	w := s.startWriter()
	s.migrates()
	w.goesOn()
	s.guest(`head -c 2000000 /dev/urandom >/disks/data/after; ` + rawDevice + `head -c 1000000 /dev/urandom | dd of=$raw bs=1M seek=40 conv=notrunc; sync`)
	b2 := s.point(s.Backup("b2", "daily", "backups"), incremental)
	s.types(b2, map[string]backupv1alpha1.BackupType{"data": incremental, "raw": incremental})
	s.verify("backups", []*lab.PointInTime{b1, b2})
	s.clean("backups", b2.Backup.Status.CheckpointName)

	s.waitsForBackup()
	w.goesOn()
	w.stop()
}

// rawDevice sets raw to the guest's device of the disk of that name.
const rawDevice = `raw=/dev/$(grep -lx raw /sys/block/*/serial | cut -d/ -f4); `

// writer is a program in the guest that appends numbers to a file, each of them durable before the next.
type writer struct {
	scene *scene
	// boot is the guest's boot, which a guest keeps that moves.
	boot string
	last int64
}

const bootID = `cat /proc/sys/kernel/random/boot_id`

func (s *scene) startWriter() *writer {
	s.t.Helper()
	s.guest(`(n=0; while [ ! -e /stop ]; do n=$((n+1)); echo $n >>/disks/data/log; sync; sleep 0.1; done) >/dev/null 2>&1 &`)
	return &writer{scene: s, boot: s.guest(bootID)}
}

// goesOn checks that the guest has not booted again, and that the writer still writes, without a gap.
func (w *writer) goesOn() {
	s := w.scene
	s.t.Helper()
	if boot := s.guest(bootID); boot != w.boot {
		s.t.Errorf("the guest has booted again: %q, not %q", boot, w.boot)
	}
	wait.Until(s.t, time.Minute, "the writer to write more", func() bool {
		n := number(s.t, s.guest(`tail -n 1 /disks/data/log`))
		grown := n > w.last
		w.last = max(n, w.last)
		return grown
	})
	if gaps := s.guest(`awk '$1 != NR { print NR ": " $1 }' /disks/data/log | head -n 3`); gaps != "" {
		verdict.Errorf(s.t, "what the guest wrote has gaps: %s", gaps)
	}
}

func (w *writer) stop() {
	w.scene.t.Helper()
	w.scene.guest(`touch /stop; sync`)
}

// migrates moves the guest with the command that users have, and checks what is there afterwards.
func (s *scene) migrates() {
	s.t.Helper()
	before := s.instance()
	s.t.Log(s.shell(fmt.Sprintf("varve vm migrate %s -n %s --wait", s.vm, s.Namespace)))
	s.hasMoved(before)
}

// migration is one that a test follows.
type migration struct {
	scene *scene
	kubevirtv1.VirtualMachineInstanceMigration
}

func (s *scene) startMigration(name string) *migration {
	s.t.Helper()
	m := &migration{scene: s}
	m.Namespace, m.Name, m.Spec.VMIName = s.Namespace, name, s.vm
	s.must(s.Create(s.t.Context(), &m.VirtualMachineInstanceMigration))
	return m
}

// wait waits until done returns true for the migration.
func (m *migration) wait(what string, done func() bool) {
	s := m.scene
	s.t.Helper()
	s.must(wait.For(s.t.Context(), migrationTimeout, what, func(ctx context.Context) (bool, string, error) {
		err := s.Get(ctx, client.ObjectKeyFromObject(&m.VirtualMachineInstanceMigration), &m.VirtualMachineInstanceMigration)
		return done(), fmt.Sprintf("%+v", m.Status), err
	}))
}

func (m *migration) succeeds() {
	m.scene.t.Helper()
	m.wait("the migration to end", func() bool {
		return m.Status.Phase == kubevirtv1.MigrationSucceeded || m.Status.Phase == kubevirtv1.MigrationFailed
	})
	if m.Status.Phase == kubevirtv1.MigrationFailed {
		m.scene.t.Fatalf("the migration failed: %+v, %+v", m.Status, m.Status.MigrationState)
	}
}

// hasMoved checks that the instance has another node, that its old pod goes, and that tracking is on again.
func (s *scene) hasMoved(before *kubevirtv1.VirtualMachineInstance) {
	s.t.Helper()
	now := s.instance()
	if now.UID != before.UID || now.Status.NodeName == before.Status.NodeName ||
		now.Status.Phase != kubevirtv1.PhaseRunning {
		s.t.Fatalf("instance %s on %s has become %s on %s, %s", before.UID, before.Status.NodeName, now.UID,
			now.Status.NodeName, now.Status.Phase)
	}
	s.must(s.WaitTracking(s.t.Context(), s.vm, kubevirtv1.ChangedBlockTrackingEnabled, time.Minute))
	_, err := s.WaitAgent(s.t.Context(), s.vm, time.Minute)
	s.must(err)
	wait.Until(s.t, time.Minute, "the pod on the old node to go", func() bool {
		var pods corev1.PodList
		s.must(s.List(s.t.Context(), &pods, client.InNamespace(s.Namespace),
			client.MatchingLabels{layout.LabelCreatedBy: string(now.UID)}))
		return !slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool { return p.Spec.NodeName == before.Status.NodeName })
	})
}

// waitsForBackup asks for a migration while a backup runs: it waits, says so, and goes on when the backup has ended.
func (s *scene) waitsForBackup() {
	s.t.Helper()
	before := s.instance()
	s.must(s.SharedClaim(s.t.Context(), "scratch", gib, corev1.PersistentVolumeFilesystem))
	s.must(s.Create(s.t.Context(), &corev1.Secret{
		ObjectMeta: gen.Meta(s.Namespace, "clients"),
		Data:       map[string][]byte{podspec.TokenKey: []byte(clientsToken)},
	}))
	s.must(s.Create(s.t.Context(), s.pull("held", "daily", "scratch")))
	held := s.ready("held")
	m := s.startMigration("back")
	m.wait("the migration to wait for the backup", func() bool {
		return slices.ContainsFunc(m.Status.Conditions, func(c kubevirtv1.MigrationCondition) bool {
			return strings.HasPrefix(string(c.Type), "migrationBlockedBy") && c.Status == corev1.ConditionTrue
		})
	})
	if m.Status.Phase != kubevirtv1.MigrationPending {
		s.t.Errorf("a migration is %s while a backup runs", m.Status.Phase)
	}
	s.delete(held)
	m.succeeds()
	s.hasMoved(before)
}
