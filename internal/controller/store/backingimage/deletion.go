package backingimage

import (
	"fmt"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
)

// decideDeletion lets an image go that is being deleted, when nothing of it is left. The stores delete its copies.
func (in *input) decideDeletion(p *plan) {
	if !p.finalizer {
		return // it is not ours to keep
	}
	if p.status.UUID == "" {
		p.finalizer = false // no disk has ever had a copy
		return
	}
	in.mergeReports(p)
	in.countReady(p)
	if len(in.volumes) > 0 {
		in.setReady(p, metav1.ConditionFalse, longhornv1.ReasonInUse, joinNames(
			"the image is being deleted, and stays until these volumes, which are clones of it, are deleted: ", in.volumes))
		return
	}
	in.removeSource(p)
	left := in.listLeftovers(p)
	if len(left) > 0 {
		in.setReady(p, metav1.ConditionFalse, longhornv1.ReasonDeleting, joinNames("the image is being deleted: ", left))
		p.lookWithin(pollDisks)
		return
	}
	p.finalizer = in.source.hasObjects()
	in.setReady(p, metav1.ConditionFalse, longhornv1.ReasonDeleting, "the image is being deleted")
}

// countReady counts the copies that are still there.
func (in *input) countReady(p *plan) {
	p.status.ReadyCopies = 0
	for _, c := range p.status.DiskFileStatusMap {
		if c.State == longhornv1.StateReady {
			p.status.ReadyCopies++
		}
	}
}

// listLeftovers says which disks still have a copy, or may have one.
func (in *input) listLeftovers(p *plan) (all []string) {
	disks := map[string]bool{}
	for disk := range p.disks {
		disks[disk] = true
	}
	for disk := range p.status.DiskFileStatusMap {
		disks[disk] = true
	}
	for _, disk := range slices.Sorted(maps.Keys(disks)) {
		s, known := in.storeOf(disk)
		r, reported := in.reports[disk]
		switch {
		case !known: // no Node lists it: see the package's comment
		case reported && s.fresh:
			text := in.describeDisk(disk) + " has a copy"
			if r.Message != "" {
				text += " (" + r.Message + ")"
			}
			all = append(all, text)
		case !s.fresh:
			all = append(all, fmt.Sprintf("%s may have a copy, and %s (if the node is gone for good, delete its Node in the "+
				"group longhorn.io)", in.describeDisk(disk), in.explainSilence(disk)))
		case !in.reportedSince[s.node]: // no event announces the next report
			p.lookWithin(5 * time.Second)
			all = append(all, "the store of node "+s.node+" has not reported since")
		case in.disks[disk] != nil && !in.disks[disk].open:
			all = append(all, in.describeDisk(disk)+" may have a copy, and "+in.explainSilence(disk))
		}
	}
	return all
}
