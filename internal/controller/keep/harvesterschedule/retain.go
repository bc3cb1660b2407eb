package harvesterschedule

import (
	"slices"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
)

// chooseOld returns the backups that go, of a schedule's backups, the oldest first. As many as retain stay of those
// that have ended: those that failed go first, and then the oldest. These always stay: the latest one that can be
// restored, what is pinned, and the latest one of all. What is pinned is not counted, and neither is the latest one
// if it has failed: it holds no data, and it explains why there is nothing newer.
func chooseOld(backups []*harvesterv1.VirtualMachineBackup, retain int) []*harvesterv1.VirtualMachineBackup {
	ended := slices.DeleteFunc(slices.Clone(backups), func(b *harvesterv1.VirtualMachineBackup) bool {
		return b.DeletionTimestamp != nil || !b.IsReady() && !b.HasFailed()
	})
	if n := len(ended); n > 0 && !ended[n-1].IsReady() {
		ended = ended[:n-1]
	}
	ended = slices.DeleteFunc(ended, isPinned)
	var failed, ready []*harvesterv1.VirtualMachineBackup
	for _, b := range ended {
		if b.IsReady() {
			ready = append(ready, b)
		} else {
			failed = append(failed, b)
		}
	}
	candidates := slices.Concat(failed, ready[:max(len(ready)-1, 0)])
	return candidates[:min(max(len(ended)-retain, 0), len(candidates))]
}

func isPinned(b *harvesterv1.VirtualMachineBackup) bool {
	return b.Annotations[harvesterv1.AnnotationPinned] == "true"
}
