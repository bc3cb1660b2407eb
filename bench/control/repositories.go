package main

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/test/controlplane"
	"github.com/varvebackup/varve/test/gen"
)

const (
	// largeContents is how many contents the index of one of the repositories has: about 10 TiB in blocks of 256 KiB.
	largeContents = 40_000_000
	// smallContents is how many that of each other one has.
	smallContents = 100_000
)

// newRepositories returns repositories that were maintained a while ago, half of them so long that they are due, and
// their location.
func newRepositories(n int, now time.Time) []client.Object {
	location := &velerov1.BackupStorageLocation{
		ObjectMeta: gen.Meta(controlplane.SystemNamespace, "shelf"),
		Spec: velerov1.BackupStorageLocationSpec{
			Provider: "aws", Default: true, Config: map[string]string{"s3Url": "https://127.0.0.1:9", "region": "here"},
			StorageType: velerov1.StorageType{ObjectStorage: &velerov1.ObjectStorageLocation{Bucket: "b"}},
		},
	}
	location.UID, location.CreationTimestamp, location.Generation = "shelf", metav1.NewTime(now), 1
	all := []client.Object{location}
	for i := range n {
		r := &velerov1.BackupRepository{
			ObjectMeta: gen.Meta(controlplane.SystemNamespace, fmt.Sprintf("shop-%d-shelf-kopia", i)),
			Spec: velerov1.BackupRepositorySpec{
				VolumeNamespace: fmt.Sprintf("shop-%d", i), BackupStorageLocation: "shelf",
				RepositoryType: velerov1.RepositoryKopia,
			},
			Status: velerov1.BackupRepositoryStatus{Phase: velerov1.RepositoryReady},
		}
		r.UID, r.CreationTimestamp, r.Generation = types.UID(fmt.Sprintf("repository-%d", i)), metav1.NewTime(now), 1
		contents := smallContents
		if i == 0 {
			contents = largeContents
		}
		r.Annotations = map[string]string{datamove.AnnotationContents: fmt.Sprint(contents)}
		for ago := range 3 {
			at := metav1.NewTime(now.Add(-time.Duration(1+ago+2*(i%2)) * time.Hour))
			r.Status.LastMaintenanceTime = &at
			r.Status.RecentMaintenance = append(r.Status.RecentMaintenance, velerov1.BackupRepositoryMaintenanceStatus{
				Result: velerov1.MaintenanceSucceeded, StartTimestamp: &at, CompleteTimestamp: &at,
			})
		}
		all = append(all, r)
	}
	return all
}
