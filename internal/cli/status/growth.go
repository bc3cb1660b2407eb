package status

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/utils/ptr"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/machinebackup"
)

const (
	// growthWindow is how far back backups count for the growth.
	growthWindow = 7 * 24 * time.Hour
	// leastGrowthSpan is how far backups are apart at least from which the growth is told.
	leastGrowthSpan = time.Hour
)

// place is what a location has of the machines of a report. Nothing in the cluster tells how much of its space is used
// or free.
type place struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Machines have restore points in it.
	Machines      int `json:"machines"`
	RestorePoints int `json:"restorePoints"`
	// ChangedBytes were new or changed in these restore points, before they were compressed.
	ChangedBytes int64 `json:"changedBytes"`
	// Growth is how much is new or changed a day, or nil if too few backups tell.
	Growth *int64 `json:"growthBytesPerDay,omitempty"`
}

// addPlaces adds what locations have of a machine, whose good backups are given, the newest first. It returns the
// machine's growth: a backup says what has changed since the one before in the same location.
func addPlaces(
	all map[harvesterv1.LocationReference]*place, good []*harvesterv1.VirtualMachineBackup, now time.Time,
) (growth *int64) {
	in := map[harvesterv1.LocationReference][]*harvesterv1.VirtualMachineBackup{}
	for _, b := range good {
		if l := b.Status.Location; l != nil && b.Spec.Type != harvesterv1.Snapshot {
			in[*l] = append(in[*l], b)
		}
	}
	for l, backups := range in {
		if all[l] == nil {
			all[l] = &place{Namespace: l.Namespace, Name: l.Name}
		}
		p := all[l]
		p.Machines++
		p.RestorePoints += len(backups)
		for _, b := range backups {
			_, changed := machinebackup.StoredBytes(b)
			p.ChangedBytes += changed
		}
		here := measureGrowth(backups, now)
		p.Growth, growth = addGrowth(p.Growth, here), addGrowth(growth, here)
	}
	return growth
}

// measureGrowth returns how many bytes were new or changed a day, by the backups of the last week, or nil if too few
// tell. The backups are the newest first. What the oldest one of them has was there before.
func measureGrowth(backups []*harvesterv1.VirtualMachineBackup, now time.Time) *int64 {
	since := now.Add(-growthWindow)
	var sum int64
	oldest := 0
	for ; oldest < len(backups)-1 && completionTime(backups[oldest]).After(since); oldest++ {
		_, changed := machinebackup.StoredBytes(backups[oldest])
		sum += changed
	}
	if oldest == 0 {
		return nil
	}
	span := completionTime(backups[0]).Sub(completionTime(backups[oldest]))
	if span < leastGrowthSpan {
		return nil
	}
	return ptr.To(int64(float64(sum) * float64(24*time.Hour) / float64(span)))
}

// addGrowth adds two growths, of which each may be unknown.
func addGrowth(a, b *int64) *int64 {
	if a == nil && b == nil {
		return nil
	}
	return ptr.To(ptr.Deref(a, 0) + ptr.Deref(b, 0))
}

// sortPlaces returns locations by their names.
func sortPlaces(all map[harvesterv1.LocationReference]*place) []place {
	sorted := []place{}
	for _, p := range all {
		sorted = append(sorted, *p)
	}
	slices.SortFunc(sorted, func(a, b place) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return sorted
}

// describeGrowth says how much a day, or "" if that is not known.
func describeGrowth(bytesPerDay *int64) string {
	if bytesPerDay == nil {
		return ""
	}
	return human.Bytes(*bytesPerDay) + "/day"
}
