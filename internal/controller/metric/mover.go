package metric

import (
	"context"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/datamove"
)

// Gauges of the data mover's locations, repositories and kept snapshots.
var (
	locationAvailable = prometheus.NewDesc("varve_location_available",
		"1 for each backup storage location that was usable when it was last tried, otherwise 0. Absent until it was tried.", locationLabels, nil)
	locationTried = prometheus.NewDesc("varve_location_last_validation_timestamp_seconds",
		"When the backup storage location was last tried, in Unix time.", locationLabels, nil)

	repositoryReady = prometheus.NewDesc("varve_repository_ready",
		"1 for each repository that can be used, otherwise 0, by the namespace of its volumes and its location.", repositoryLabels, nil)
	repositoryMaintained = prometheus.NewDesc("varve_repository_last_maintenance_timestamp_seconds",
		"When maintenance of the repository last succeeded, in Unix time. Absent if it never has.", repositoryLabels, nil)
	repositoryFailures = prometheus.NewDesc("varve_repository_maintenance_failures",
		"How many of the repository's recent runs of maintenance failed since the last one that succeeded.", repositoryLabels, nil)

	keptSnapshots = prometheus.NewDesc("varve_kept_snapshots",
		"CSI snapshots that are kept on the storage so that the next upload of their claim can be incremental, by the namespace of the claim and the CSI driver.",
		[]string{"namespace", "driver"}, nil)
)

var (
	locationLabels   = []string{"namespace", "location"}
	repositoryLabels = []string{"namespace", "location_namespace", "location"}
)

// moverDescriptions describes what collectLocations, collectRepositories and collectKept report.
var moverDescriptions = []*prometheus.Desc{locationAvailable, locationTried, repositoryReady, repositoryMaintained, repositoryFailures, keptSnapshots}

// KeptSnapshots is what kept snapshots are counted by: the namespace of their claims, and their driver. Both are "" for
// those that say nothing of it.
type KeptSnapshots struct{ Namespace, Driver string }

// CountKept has the numbers of kept snapshots reported until the next call; nil: nothing is known. Snapshots are in no cache, so the controller
// that looks at them counts.
func (s *Set) CountKept(counts map[KeptSnapshots]int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept = counts
}

func (s *Set) collectKept(ch chan<- prometheus.Metric) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for group, n := range s.kept {
		sendGauge(ch, keptSnapshots, float64(n), group.Namespace, group.Driver)
	}
}

func (s *Set) collectLocations(ctx context.Context, ch chan<- prometheus.Metric) {
	var list velerov1.BackupStorageLocationList
	if err := s.cached.List(ctx, &list); err != nil {
		return
	}
	for i := range list.Items {
		l := &list.Items[i]
		if l.Status.Phase != "" {
			sendGauge(ch, locationAvailable, oneIf(l.Status.Phase == velerov1.LocationAvailable), l.Namespace, l.Name)
		}
		if at := l.Status.LastValidationTime; at != nil {
			sendGauge(ch, locationTried, unixSeconds(at.Time), l.Namespace, l.Name)
		}
	}
}

// collectRepositories reports on the repositories of Varve's namespace, which alone are cached. Of several for the same volumes and location
// it reports on the one that the data mover uses: the same series twice would be an error that hides every metric.
func (s *Set) collectRepositories(ctx context.Context, ch chan<- prometheus.Metric) {
	var list velerov1.BackupRepositoryList
	if err := s.cached.List(ctx, &list); err != nil {
		return
	}
	for i := range list.Items {
		r := &list.Items[i]
		at := datamove.Location{Namespace: r.Spec.RepositoryConfig[datamove.ConfigLocationNamespace], Name: r.Spec.BackupStorageLocation}
		if r.Name != datamove.RepositoryName(r.Spec.VolumeNamespace, at) {
			continue
		}
		labels := []string{r.Spec.VolumeNamespace, at.Namespace, at.Name}
		sendGauge(ch, repositoryReady, oneIf(r.Status.Phase == velerov1.RepositoryReady), labels...)
		sendGauge(ch, repositoryFailures, failuresInARow(r.Status.RecentMaintenance), labels...)
		if at := r.Status.LastMaintenanceTime; at != nil {
			sendGauge(ch, repositoryMaintained, unixSeconds(at.Time), labels...)
		}
	}
}

// failuresInARow counts the runs that failed after the last success. runs are the oldest first.
func failuresInARow(runs []velerov1.BackupRepositoryMaintenanceStatus) (n float64) {
	for _, r := range slices.Backward(runs) {
		switch r.Result {
		case velerov1.MaintenanceFailed:
			n++
		case velerov1.MaintenanceSucceeded:
			return n
		}
	}
	return n
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
