package metric

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/datamove"
)

func location(name string, status velerov1.BackupStorageLocationStatus) *velerov1.BackupStorageLocation {
	return &velerov1.BackupStorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: name}, Status: status}
}

func TestLocations_areReportedOnceTheyWereTried(t *testing.T) {
	t.Parallel()
	c := readerOf(t,
		location("good", velerov1.BackupStorageLocationStatus{Phase: velerov1.LocationAvailable, LastValidationTime: at(3)}),
		location("bad", velerov1.BackupStorageLocationStatus{Phase: "Unavailable", LastValidationTime: at(4)}),
		location("new", velerov1.BackupStorageLocationStatus{}),
	)
	mustEqual(t, series(t, begin(t, c), "varve_location_"), []string{
		"varve_location_available{location=good,namespace=velero} 1",
		"varve_location_available{location=bad,namespace=velero} 0",
		"varve_location_last_validation_timestamp_seconds{location=good,namespace=velero} 3",
		"varve_location_last_validation_timestamp_seconds{location=bad,namespace=velero} 4",
	})
}

// What nobody can look at is not 0.
func TestKeptSnapshots_areThoseOfTheLastLook(t *testing.T) {
	t.Parallel()
	s := begin(t, readerOf(t))
	for _, c := range []struct {
		counts map[KeptSnapshots]int
		want   []string
	}{
		{nil, nil},
		{map[KeptSnapshots]int{{Namespace: "app", Driver: "a"}: 2, {Namespace: "web", Driver: "a"}: 1}, []string{
			"varve_kept_snapshots{driver=a,namespace=app} 2", "varve_kept_snapshots{driver=a,namespace=web} 1",
		}},
		{
			map[KeptSnapshots]int{{Namespace: "web", Driver: "a"}: 3},
			[]string{"varve_kept_snapshots{driver=a,namespace=web} 3"},
		},
		{nil, nil},
	} {
		s.CountKept(c.counts)
		mustEqual(t, series(t, s, "varve_kept_"), c.want)
	}
}

// repository returns the data mover's repository for the volumes of a namespace.
func repository(namespace string, status velerov1.BackupRepositoryStatus) *velerov1.BackupRepository {
	r := &velerov1.BackupRepository{
		ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: datamove.RepositoryName(namespace, datamove.Location{Namespace: "velero", Name: "default"})},
		Spec: velerov1.BackupRepositorySpec{
			VolumeNamespace: namespace, BackupStorageLocation: "default", RepositoryConfig: map[string]string{datamove.ConfigLocationNamespace: "velero"},
		},
		Status: status,
	}
	return r
}

func runs(results ...velerov1.BackupRepositoryMaintenanceResult) (all []velerov1.BackupRepositoryMaintenanceStatus) {
	for _, r := range results {
		all = append(all, velerov1.BackupRepositoryMaintenanceStatus{Result: r})
	}
	return all
}

func TestRepositories_tellTheirMaintenance(t *testing.T) {
	t.Parallel()
	const succeeded, failed = velerov1.MaintenanceSucceeded, velerov1.MaintenanceFailed
	again := repository("a", velerov1.BackupRepositoryStatus{Phase: velerov1.RepositoryReady})
	again.Name = "by-hand"
	c := readerOf(t,
		repository("a", velerov1.BackupRepositoryStatus{Phase: velerov1.RepositoryReady, LastMaintenanceTime: at(7), RecentMaintenance: runs(failed, succeeded, failed, failed, "")}),
		repository("b", velerov1.BackupRepositoryStatus{Phase: "NotReady", RecentMaintenance: runs(failed)}),
		repository("c", velerov1.BackupRepositoryStatus{RecentMaintenance: runs(failed, succeeded)}),
		again,
	)
	mustEqual(t, series(t, begin(t, c), "varve_repository_"), []string{
		"varve_repository_ready{location=default,location_namespace=velero,namespace=a} 1",
		"varve_repository_ready{location=default,location_namespace=velero,namespace=b} 0",
		"varve_repository_ready{location=default,location_namespace=velero,namespace=c} 0",
		"varve_repository_last_maintenance_timestamp_seconds{location=default,location_namespace=velero,namespace=a} 7",
		"varve_repository_maintenance_failures{location=default,location_namespace=velero,namespace=a} 2",
		"varve_repository_maintenance_failures{location=default,location_namespace=velero,namespace=b} 1",
		"varve_repository_maintenance_failures{location=default,location_namespace=velero,namespace=c} 0",
	})
}
