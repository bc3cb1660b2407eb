package status

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/ptr"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
)

// changedBackup returns a good backup in a location that was made some hours before the latest run.
func changedBackup(name, location string, hoursBefore int, changed int64) harvesterv1.VirtualMachineBackup {
	b := newBackup(name, "web", hoursBefore, "")
	b.Status.Location = &harvesterv1.LocationReference{Namespace: "varve", Name: location}
	b.Status.VolumeBackups = []harvesterv1.VolumeBackup{{VolumeSize: 1000, ChangedBytes: changed}}
	return b
}

// The growth of a machine is that of its locations. The oldest backup that counts has what was there before.
func TestGrowth(t *testing.T) {
	t.Parallel()
	const day = 24
	type backups = []harvesterv1.VirtualMachineBackup
	snapshot := changedBackup("s", "shelf", 0, 5)
	snapshot.Spec.Type, snapshot.Status.Location = harvesterv1.Snapshot, nil
	failed := changedBackup("f", "shelf", 0, 500)
	failed.Status.ReadyToUse, failed.Status.Error = nil, &harvesterv1.Error{Message: ptr.To("full")}
	for name, c := range map[string]struct {
		backups backups
		want    *int64
		places  []place
	}{
		"none":       {nil, nil, []place{}},
		"one backup": {backups{changedBackup("a", "shelf", 0, 900)}, nil, []place{{"varve", "shelf", 1, 1, 900, nil}}},
		"every day": {
			backups{
				changedBackup("a", "shelf", 0, 10), changedBackup("b", "shelf", day, 30),
				changedBackup("c", "shelf", 2*day, 900), failed,
			},
			ptr.To[int64](20),
			[]place{{"varve", "shelf", 1, 3, 940, ptr.To[int64](20)}},
		},
		"twice a day": {
			backups{changedBackup("a", "shelf", 0, 10), changedBackup("b", "shelf", 12, 900)},
			ptr.To[int64](20),
			[]place{{"varve", "shelf", 1, 2, 910, ptr.To[int64](20)}},
		},
		"what is older than a week does not count": {
			backups{
				changedBackup("a", "shelf", 0, 70), changedBackup("b", "shelf", 7*day, 900),
				changedBackup("c", "shelf", 8*day, 900),
			},
			ptr.To[int64](10),
			[]place{{"varve", "shelf", 1, 3, 1870, ptr.To[int64](10)}},
		},
		"every ten days": {
			backups{changedBackup("a", "shelf", day, 100), changedBackup("b", "shelf", 11*day, 900)},
			ptr.To[int64](10),
			[]place{{"varve", "shelf", 1, 2, 1000, ptr.To[int64](10)}},
		},
		"none for more than a week": {
			backups{changedBackup("a", "shelf", 8*day, 100), changedBackup("b", "shelf", 9*day, 900)},
			nil,
			[]place{{"varve", "shelf", 1, 2, 1000, nil}},
		},
		"less than an hour apart": {
			backups{changedBackup("a", "shelf", 0, 100), changedBackup("b", "shelf", 0, 900)},
			nil,
			[]place{{"varve", "shelf", 1, 2, 1000, nil}},
		},
		"two locations": {
			backups{
				changedBackup("a", "shelf", 0, 10), changedBackup("b", "bucket", 0, 3),
				changedBackup("c", "shelf", day, 900), changedBackup("d", "bucket", day, 900),
				changedBackup("e", "other", day, 900), snapshot,
			},
			ptr.To[int64](13),
			[]place{
				{"varve", "bucket", 1, 2, 903, ptr.To[int64](3)},
				{"varve", "other", 1, 1, 900, nil},
				{"varve", "shelf", 1, 2, 910, ptr.To[int64](10)},
			},
		},
	} {
		seen := &objects{}
		seen.backups.Items = c.backups
		r := newReport(seen, due.Add(time.Minute))
		var got *int64
		if len(r.Items) > 0 {
			got = r.Items[0].Growth
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: growth %s", name, diff)
		}
		if diff := cmp.Diff(c.places, r.Locations); diff != "" {
			t.Errorf("%s: locations %s", name, diff)
		}
		if diff := cmp.Diff(c.want, r.Total.Growth); diff != "" {
			t.Errorf("%s: total %s", name, diff)
		}
	}
}
