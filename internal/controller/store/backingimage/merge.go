package backingimage

import (
	"fmt"
	"maps"
	"slices"
	"time"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/reconcile"
)

// retryCopyAfter is how long a copy that failed stays away from its disk.
const retryCopyAfter = 5 * time.Minute

// mergeReports writes what the stores report into the status, and what follows from a report that is missing.
func (in *input) mergeReports(p *plan) {
	before := p.status.DiskFileStatusMap
	p.status.DiskFileStatusMap = map[string]*longhornv1.BackingImageDiskFileStatus{}
	in.adoptIdentity(p)
	for disk := range before {
		in.mergeDisk(p, disk, before[disk])
	}
	for disk := range p.disks {
		in.mergeDisk(p, disk, before[disk])
	}
	for disk := range in.reports {
		in.mergeDisk(p, disk, before[disk])
	}
}

// adoptIdentity takes checksum and size from the first copy that is ready. They never change afterwards.
func (in *input) adoptIdentity(p *plan) {
	s := &p.status
	for _, disk := range append([]string{s.V2FirstCopyDisk}, slices.Sorted(maps.Keys(p.disks))...) {
		r, ok := in.freshReport(disk)
		if !ok || p.disks[disk] == nil || r.State != longhornv1.StateReady || r.CurrentChecksum == "" {
			continue
		}
		if s.Checksum == "" {
			s.Checksum, s.Size, s.VirtualSize, s.RealSize = r.CurrentChecksum, r.Size, r.Size, r.RealSize
		}
		if s.PiecesChecksum == "" && s.Checksum == r.CurrentChecksum {
			s.PiecesChecksum = r.PiecesChecksum
		}
	}
}

func (in *input) mergeDisk(p *plan, disk string, before *longhornv1.BackingImageDiskFileStatus) {
	if _, done := p.status.DiskFileStatusMap[disk]; done {
		return
	}
	next := in.stateOf(p, disk, before)
	if next == nil {
		return
	}
	next.DataEngine = longhornv1.DataEngineV2
	next.Message = reconcile.CutText(next.Message, messageBytes)
	next.LastStateTransitionTime = in.now.UTC().Format(time.RFC3339)
	if before != nil && before.State == next.State && before.LastStateTransitionTime != "" {
		next.LastStateTransitionTime = before.LastStateTransitionTime
	}
	p.status.DiskFileStatusMap[disk] = next
}

// stateOf returns what is known of the copy on a disk. Nil: there is none, and none is wanted.
func (in *input) stateOf(
	p *plan, disk string, before *longhornv1.BackingImageDiskFileStatus,
) *longhornv1.BackingImageDiskFileStatus {
	type status = longhornv1.BackingImageDiskFileStatus
	wanted := p.disks[disk] != nil
	if r, ok := in.freshReport(disk); ok {
		if in.isRetriedLater(disk, before, wanted) {
			return before.DeepCopy() // what is left of it is being deleted
		}
		return in.stateOfReport(p, r, wanted)
	}
	d := in.disks[disk]
	absent := d != nil && d.open && d.store.fresh && in.reports[disk].UUID == ""
	neverSeen := before == nil || before.State == longhornv1.StatePending
	if in.isRetriedLater(disk, before, wanted) {
		return before.DeepCopy()
	}
	switch {
	case wanted && absent:
		return &status{State: longhornv1.StatePending, Message: "the store of node " + d.node + " has not begun the copy"}
	case !wanted && (absent || d == nil && in.reports[disk].UUID == ""):
		return nil
	case neverSeen && wanted && in.reports[disk].UUID == "":
		return &status{State: longhornv1.StatePending, Message: in.explainSilence(disk)}
	}
	return &status{State: longhornv1.StateUnknown, Message: in.explainSilence(disk)}
}

// isRetriedLater says whether the copy on a disk failed, left the spec, and is to be made again.
func (in *input) isRetriedLater(disk string, before *longhornv1.BackingImageDiskFileStatus, wanted bool) bool {
	return !wanted && before != nil && before.State == longhornv1.StateFailed && before.RetrySpec != nil &&
		in.disks[disk] != nil && in.image.Status.V2FirstCopyStatus == longhornv1.StateReady && !in.isEvicted(disk)
}

func (in *input) stateOfReport(p *plan, r report, wanted bool) *longhornv1.BackingImageDiskFileStatus {
	next := &longhornv1.BackingImageDiskFileStatus{State: r.State, Progress: r.Progress, Message: r.Message}
	switch {
	case !wanted && r.State != longhornv1.StateFailed:
		if next.Message == "" {
			next.Message = "the copy is not in spec.diskFileSpecMap: the store of node " + r.store.node + " deletes it"
		}
	case r.State == longhornv1.StateReady && r.CurrentChecksum == "":
		next.State, next.Message = longhornv1.StateFailed, "the store of node "+r.store.node+" reports no checksum"
	case r.State == longhornv1.StateReady && r.CurrentChecksum != p.status.Checksum:
		next.State = longhornv1.StateFailed
		next.Message = fmt.Sprintf("the copy has the SHA-512 %.16s…, and the image %.16s…", r.CurrentChecksum,
			p.status.Checksum)
	case r.State == longhornv1.StateReady && r.PiecesChecksum != "" && r.PiecesChecksum != p.status.PiecesChecksum:
		next.State, next.Message = longhornv1.StateFailed, "the hashes of the copy's pieces are not those of the image"
	}
	return next
}

// explainSilence says why nothing reports the copy on a disk.
func (in *input) explainSilence(disk string) string {
	d := in.disks[disk]
	s, known := in.storeOf(disk)
	switch {
	case !known:
		return "no Node lists the disk " + disk
	case s.heard.IsZero():
		return "the store of node " + s.node + " has never reported: is varve store running there?"
	case !s.fresh:
		return fmt.Sprintf("the store of node %s reported last at %s: is varve store running there?", s.node,
			s.heard.UTC().Format(time.RFC3339))
	case d != nil && !d.open:
		return fmt.Sprintf("disk %s of node %s cannot be used: %s", d.name, d.node, d.message)
	}
	return "the store of node " + s.node + " does not report the copy"
}
