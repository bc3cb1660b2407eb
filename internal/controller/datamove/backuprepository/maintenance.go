package backuprepository

import (
	"crypto/sha256"
	"encoding/binary"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/datamove"
)

const (
	// defaultFrequency is how often maintenance runs unless the BackupRepository says otherwise. The Job decides
	// whether it is to be quick or full. The first run comes half of that to one and a half later.
	defaultFrequency = time.Hour
	// recentRuns is how many runs status has.
	recentRuns = 25
	// firstMaintenanceRetry is the pause after a run that failed. It doubles up to lastMaintenanceRetry.
	firstMaintenanceRetry, lastMaintenanceRetry = 5 * time.Minute, time.Hour
)

// maintenance is what is to be done about maintenance.
type maintenance struct {
	// Record is the run that has ended and that status does not have yet.
	Record *velerov1.BackupRepositoryMaintenanceStatus
	// Contents is how many contents the run of Record has counted; 0: it has not.
	Contents int64
	// Create makes the Job. Delete deletes it after its run is recorded.
	Create, Delete bool
	// After is when maintenance is due; 0: a change will tell.
	After time.Duration
}

// decideMaintenance decides about maintenance. No new run begins on a repository that is not ready.
func decideMaintenance(in *input, ready bool) maintenance {
	if in.Job != nil {
		run := runOf(in)
		switch {
		case in.Job.DeletionTimestamp != nil, run == nil && !ownedBy(in.Job, in.Repo):
			return maintenance{After: firstRetry}
		case run == nil:
			return maintenance{}
		}
		m := maintenance{Delete: true, After: time.Second}
		if !recorded(in.Repo, run) {
			m.Record = run
			if run.Result == velerov1.MaintenanceSucceeded {
				m.Contents = datamove.DecodeMaintenanceReport(in.JobMessage).Contents
			}
		}
		return m
	}
	if !ready || in.Place.ReadOnly {
		return maintenance{}
	}
	if wait := dueAt(in.Repo).Sub(in.Now); wait > 0 {
		return maintenance{After: wait}
	}
	return maintenance{Create: true}
}

// dueAt returns when the next run is due.
func dueAt(repo *velerov1.BackupRepository) time.Time {
	every := repo.Spec.MaintenanceFrequency.Duration
	if every <= 0 {
		every = defaultFrequency
	}
	runs, failures := repo.Status.RecentMaintenance, 0
	for i := len(runs) - 1; i >= 0 && runs[i].Result == velerov1.MaintenanceFailed; i-- {
		failures++
	}
	if failures > 0 && runs[len(runs)-1].CompleteTimestamp != nil {
		pause := firstMaintenanceRetry
		for range min(failures-1, 10) {
			pause = min(2*pause, lastMaintenanceRetry)
		}
		return runs[len(runs)-1].CompleteTimestamp.Add(min(pause, every))
	}
	if last := repo.Status.LastMaintenanceTime; last != nil {
		return last.Add(every)
	}
	return repo.CreationTimestamp.Add(every/2 + firstRunOffset(repo.UID, every))
}

// firstRunOffset returns a duration below every that depends on the UID alone. A catalogue makes the
// BackupRepositories of a location at one moment, and their first runs must not come at one moment.
func firstRunOffset(uid types.UID, every time.Duration) time.Duration {
	sum := sha256.Sum256([]byte(uid))
	share := float64(binary.BigEndian.Uint32(sum[:4])) / (1 << 32)
	return time.Duration(share * float64(every))
}

// runOf returns what a Job did; nil while it runs.
func runOf(in *input) *velerov1.BackupRepositoryMaintenanceStatus {
	start := in.Job.Status.StartTime
	if start == nil {
		start = &in.Job.CreationTimestamp
	}
	c := EndOf(in.Job)
	if c == nil {
		return nil
	}
	run := &velerov1.BackupRepositoryMaintenanceStatus{
		StartTimestamp: start.DeepCopy(), CompleteTimestamp: c.LastTransitionTime.DeepCopy(),
	}
	if c.Type == batchv1.JobComplete {
		run.Result = velerov1.MaintenanceSucceeded
		run.Message = datamove.DecodeMaintenanceReport(in.JobMessage).Remark
		return run
	}
	run.Result, run.Message = velerov1.MaintenanceFailed, in.JobMessage
	if run.Message == "" {
		run.Message = c.Reason + ": " + c.Message
	}
	return run
}

// recorded says whether status has a run. A Job whose deletion failed is seen again.
func recorded(repo *velerov1.BackupRepository, run *velerov1.BackupRepositoryMaintenanceStatus) bool {
	for _, r := range repo.Status.RecentMaintenance {
		if r.StartTimestamp != nil && r.StartTimestamp.Equal(run.StartTimestamp) {
			return true
		}
	}
	return false
}

// record adds a run to a status.
func record(status *velerov1.BackupRepositoryStatus, run *velerov1.BackupRepositoryMaintenanceStatus) {
	if run == nil {
		return
	}
	status.RecentMaintenance = append(status.RecentMaintenance, *run)
	if extra := len(status.RecentMaintenance) - recentRuns; extra > 0 {
		status.RecentMaintenance = status.RecentMaintenance[extra:]
	}
	if run.Result == velerov1.MaintenanceSucceeded {
		status.LastMaintenanceTime = run.CompleteTimestamp.DeepCopy()
	}
}

// ownedBy says whether an object was made for this BackupRepository, and not for an earlier one of its name.
func ownedBy(o metav1.Object, repo *velerov1.BackupRepository) bool {
	owner := metav1.GetControllerOfNoCopy(o)
	return owner != nil && owner.UID == repo.UID
}
