package metric

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/log"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/internal/reconcile"
)

const (
	// historyPage is how many backups are read at a time, which bounds the memory that a long history takes.
	historyPage = 500
	// historyRetry is how long a failed read of the history waits.
	historyRetry = 15 * time.Second
)

// Start reads what the API server knows about backups that have ended, and returns when it is done. The manager calls it
// when this process has the lease.
func (s *Set) Start(ctx context.Context) error {
	if s.BesideKubeVirt {
		return nil // nothing of it is shown
	}
	err := wait.PollUntilContextCancel(ctx, historyRetry, true, func(ctx context.Context) (bool, error) {
		if err := s.readHistory(ctx); err != nil {
			log.FromContext(ctx).Error(err, "read the ended backups for the metrics; trying again")
			return false, nil
		}
		return true, nil
	})
	if ctx.Err() != nil {
		return nil //nolint:nilerr // the manager stops
	}
	return err
}

// NeedLeaderElection returns true: only one replica reports.
func (s *Set) NeedLeaderElection() bool { return true }

func (s *Set) readHistory(ctx context.Context) error {
	newList := func() *backupv1.VirtualMachineBackupList { return &backupv1.VirtualMachineBackupList{} }
	err := reconcile.ListPages(ctx, s.live, historyPage, newList, func(page *backupv1.VirtualMachineBackupList) error {
		s.rememberEnded(page.Items)
		return nil
	})
	if err != nil {
		return fmt.Errorf("list backups: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.historyRead = true
	return nil
}

func (s *Set) rememberEnded(backups []backupv1.VirtualMachineBackup) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range backups {
		if b := &backups[i]; b.Status.Phase.Final() && machineOf(b).Name != "" {
			s.remember(machineOf(b), endOf(b))
		}
	}
}
