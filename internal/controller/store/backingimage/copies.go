package backingimage

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
)

// addCopy has a copy made on a disk. Its state is that of a copy that nobody reports yet.
func (in *input) addCopy(p *plan, disk string) {
	p.disks[disk] = &longhornv1.BackingImageDiskFileSpec{DataEngine: longhornv1.DataEngineV2}
}

// describeNewDisks gives disks that were added in this pass a state, so that the time at which they were added is known.
func (in *input) describeNewDisks(p *plan) {
	for disk := range p.disks {
		_, listed := in.image.Spec.DiskFileSpecMap[disk]
		if c := p.status.DiskFileStatusMap[disk]; c == nil || c.State == longhornv1.StateFailed && !listed {
			delete(p.status.DiskFileStatusMap, disk)
			in.mergeDisk(p, disk, nil)
		}
	}
}

// decideCopies adds and removes copies of an image that is ready, and says what keeps it from having what it should.
func (in *input) decideCopies(p *plan) reason {
	if !in.hasReadyCopy(p, "") {
		return reason{} // there is nothing to copy from, and nothing that can be spared
	}
	in.removeGone(p)
	in.removeStuck(p)
	in.removeFailed(p)
	in.retryFailed(p)
	in.followReplicas(p)
	why := in.keepMinimum(p)
	if blocked := in.evictCopies(p); blocked != "" && why.message == "" {
		why.message = blocked
	}
	in.noteUse(p)
	in.removeUnused(p)
	return why
}

// hasReadyCopy says whether a copy is ready and stays, on another disk than one.
func (in *input) hasReadyCopy(p *plan, than string) bool {
	for disk, c := range p.status.DiskFileStatusMap {
		if disk != than && p.disks[disk] != nil && c.State == longhornv1.StateReady {
			return true
		}
	}
	return false
}

// countCopies returns how many copies count as such, and how many of them are ready.
func (in *input) countCopies(p *plan) (all, ready int) {
	for disk := range p.disks {
		c := p.status.DiskFileStatusMap[disk]
		if in.isEvicted(disk) || in.isGone(disk) || c != nil && c.State == longhornv1.StateFailed || in.isStuck(c) {
			continue
		}
		all++
		if c != nil && c.State == longhornv1.StateReady {
			ready++
		}
	}
	return all, ready
}

// isStuck says whether a copy has waited so long to begin that another disk gets one.
func (in *input) isStuck(c *longhornv1.BackingImageDiskFileStatus) bool {
	if c == nil || c.State != longhornv1.StatePending {
		return false
	}
	since, err := time.Parse(time.RFC3339, c.LastStateTransitionTime)
	return err == nil && in.now.Sub(since) >= in.GiveUpUnknown
}

// removeGone removes disks that nothing knows any more, if another copy is ready.
func (in *input) removeGone(p *plan) {
	for disk := range p.disks {
		if in.isGone(disk) && in.hasReadyCopy(p, disk) {
			delete(p.disks, disk)
		}
	}
}

// removeStuck takes copies off their disks that have not begun for long, unless somebody waits for them there.
func (in *input) removeStuck(p *plan) {
	for disk := range p.disks {
		c := p.status.DiskFileStatusMap[disk]
		if c == nil || c.State != longhornv1.StatePending || in.isKept(disk) || in.isUsed(disk, true) {
			continue
		}
		if in.isStuck(c) {
			delete(p.disks, disk)
			continue
		}
		p.lookWithin(in.GiveUpUnknown)
	}
}

// removeFailed has the stores delete copies that failed, except those whose clones are in use. Those that a user has
// evicted go for good.
func (in *input) removeFailed(p *plan) {
	for disk := range p.disks {
		c := p.status.DiskFileStatusMap[disk]
		if c == nil || c.State != longhornv1.StateFailed || in.isUsed(disk, false) {
			continue
		}
		delete(p.disks, disk)
		c.RetrySpec = nil
		if !in.isEvicted(disk) {
			c.RetrySpec = &longhornv1.BackingImageDiskFileSpec{
				DataEngine: longhornv1.DataEngineV2, Keep: in.isKept(disk),
			}
		}
	}
}

// retryFailed has copies made again that failed a while ago, and that removeFailed took off their disks.
func (in *input) retryFailed(p *plan) {
	for disk, c := range p.status.DiskFileStatusMap {
		_, present := in.reports[disk]
		_, listed := in.image.Spec.DiskFileSpecMap[disk]
		if c.State != longhornv1.StateFailed || c.RetrySpec == nil || present || listed || in.disks[disk] == nil {
			continue
		}
		failed, err := time.Parse(time.RFC3339, c.LastStateTransitionTime)
		if left := failed.Add(retryCopyAfter).Sub(in.now); err == nil && left > 0 {
			p.lookWithin(left)
			continue
		}
		p.disks[disk] = c.RetrySpec.DeepCopy()
	}
}

// followReplicas has a copy made on each disk on which a replica waits for it.
func (in *input) followReplicas(p *plan) {
	for i := range in.replicas {
		disk := in.replicas[i].Spec.DiskID
		_, listed := in.image.Spec.DiskFileSpecMap[disk]
		if disk == "" || p.disks[disk] != nil || listed || in.replicas[i].DeletionTimestamp != nil {
			continue
		}
		if c := p.status.DiskFileStatusMap[disk]; c == nil || c.State != longhornv1.StateFailed {
			in.addCopy(p, disk)
		}
	}
}

// keepMinimum adds one disk if there are fewer copies than spec.minNumberOfCopies.
func (in *input) keepMinimum(p *plan) reason {
	all, _ := in.countCopies(p)
	want := max(in.image.Spec.MinNumberOfCopies, 1)
	if all >= want {
		return reason{}
	}
	text := fmt.Sprintf("%d of %d copies that stay", all, want)
	making := 0
	for disk := range p.disks {
		c := p.status.DiskFileStatusMap[disk]
		if c == nil || c.State == longhornv1.StatePending && !in.isStuck(c) || c.State == longhornv1.StateInProgress {
			making++
		}
	}
	if making >= in.ParallelCopies {
		return reason{message: text + ": the next one is made when the present one is ready"}
	}
	disk, why := in.chooseDisk(p, false)
	if disk == "" {
		p.lookWithin(pollDisks)
		return reason{message: text + ": " + why}
	}
	in.addCopy(p, disk)
	return reason{}
}

// evictCopies removes copies that are to go, as soon as there are enough others. It says what keeps one of them.
func (in *input) evictCopies(p *plan) (blocked string) {
	for _, disk := range slices.Sorted(maps.Keys(p.disks)) {
		if !in.isEvicted(disk) {
			continue
		}
		_, ready := in.countCopies(p)
		switch {
		case in.isUsed(disk, true):
			blocked = "the copy on " + in.describeDisk(disk) + " stays, because volumes on the disk are clones of it"
		case ready < max(in.image.Spec.MinNumberOfCopies, 1) || !in.hasReadyCopy(p, disk):
			blocked = "the copy on " + in.describeDisk(disk) + " stays until there are enough others"
		default:
			delete(p.disks, disk)
		}
	}
	return blocked
}

// noteUse records since when no replica has used a copy that is ready.
func (in *input) noteUse(p *plan) {
	before := p.status.DiskLastRefAtMap
	p.status.DiskLastRefAtMap = map[string]string{}
	for disk := range p.disks {
		c := p.status.DiskFileStatusMap[disk]
		if in.isUsed(disk, true) || in.isKept(disk) || c == nil || c.State != longhornv1.StateReady {
			continue
		}
		p.status.DiskLastRefAtMap[disk] = in.now.UTC().Format(time.RFC3339)
		if t, ok := before[disk]; ok {
			p.status.DiskLastRefAtMap[disk] = t
		}
	}
}

// removeUnused removes the copy that was not used for the longest time, if it is long enough and there are enough
// others. Nothing goes because of a copy that a user keeps: it is besides them.
func (in *input) removeUnused(p *plan) {
	_, ready := in.countCopies(p)
	for disk := range p.disks {
		c := p.status.DiskFileStatusMap[disk]
		if in.isKept(disk) && !in.isEvicted(disk) && c != nil && c.State == longhornv1.StateReady && !in.isGone(disk) {
			ready--
		}
	}
	if ready <= max(in.image.Spec.MinNumberOfCopies, 1) {
		return
	}
	var oldest string
	var since time.Time
	for _, disk := range slices.Sorted(maps.Keys(p.status.DiskLastRefAtMap)) {
		c := p.status.DiskFileStatusMap[disk]
		t, err := time.Parse(time.RFC3339, p.status.DiskLastRefAtMap[disk])
		if err != nil || c == nil || c.State != longhornv1.StateReady || in.isEvicted(disk) {
			continue
		}
		if oldest == "" || t.Before(since) {
			oldest, since = disk, t
		}
	}
	if oldest == "" {
		return
	}
	if left := since.Add(in.RemoveUnused).Sub(in.now); left > 0 {
		p.lookWithin(left)
		return
	}
	delete(p.disks, oldest)
	delete(p.status.DiskLastRefAtMap, oldest)
}

// chooseDisk returns the best disk for another copy, or why there is none. A first copy prefers disks that are in the
// spec or that a replica waits on, and leaves the disk of the last attempt for later. What is made of something that a
// disk has is made there.
func (in *input) chooseDisk(p *plan, first bool) (disk, why string) {
	var fit []*diskView
	var unfit []string
	origins, _ := in.listOriginDisks()
	for _, uuid := range slices.Sorted(maps.Keys(in.disks)) {
		d := in.disks[uuid]
		if !first && p.disks[uuid] != nil || first && origins != nil && !origins[uuid] {
			continue
		}
		no := in.whyUnfit(p, d)
		if no == "" && first {
			no = in.explainClosed(d.node)
		}
		if no != "" {
			unfit = append(unfit, in.describeDisk(uuid)+" "+no)
			continue
		}
		fit = append(fit, d)
	}
	if len(fit) == 0 {
		return "", in.explainNoDisk(first, unfit)
	}
	rank := func(d *diskView) int {
		switch {
		case !first:
			return 0
		case d.uuid == p.status.V2FirstCopyDisk:
			return 2
		case p.disks[d.uuid] != nil || in.isUsed(d.uuid, true):
			return 0
		}
		return 1
	}
	best := slices.MinFunc(fit, func(a, b *diskView) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), in.origin.storage.Compare(a.node, b.node),
			cmp.Compare(b.available, a.available), cmp.Compare(a.uuid, b.uuid))
	})
	return best.uuid, ""
}

// explainNoDisk says why no disk can have another copy. unfit says it of each that was considered.
func (in *input) explainNoDisk(first bool, unfit []string) string {
	switch {
	case len(unfit) > 0:
		return joinNames("no disk fits: ", unfit)
	case first && in.origin.storage.Nodes != nil:
		return fmt.Sprintf("no node that reaches the storage of the BackupStorageLocation %s has a disk: spec.disks of its "+
			"Node must have one, or else the storage must be one that all nodes reach", originName(in.image))
	case first && in.image.Spec.SourceType.IsLocal():
		return "no Node lists a disk that has " + in.describeOrigin() + ": is varve store running on its node?"
	case first:
		return "no node has a disk: is varve store running, and does spec.disks of its Node have a disk?"
	}
	return "every disk has a copy"
}

// whyUnfit says why a disk cannot have a copy.
func (in *input) whyUnfit(p *plan, d *diskView) string {
	_, left := in.reports[d.uuid]
	failed := p.status.DiskFileStatusMap[d.uuid]
	switch {
	case !d.store.fresh:
		return "has no store that reports (" + in.explainSilence(d.uuid) + ")"
	case !d.ready:
		return "is not ready (" + d.message + ")"
	case !d.schedulable:
		return "is on a node with spec.allowScheduling false"
	case !d.spec.AllowScheduling:
		return "has allowScheduling false"
	case in.isEvicted(d.uuid):
		return "is being evicted"
	case !hasTags(d.spec.Tags, in.image.Spec.DiskSelector):
		return fmt.Sprintf("does not have all tags of spec.diskSelector %q", in.image.Spec.DiskSelector)
	case !hasTags(d.tags, in.image.Spec.NodeSelector):
		return fmt.Sprintf("is on a node that does not have all tags of spec.nodeSelector %q", in.image.Spec.NodeSelector)
	case d.available <= p.status.RealSize:
		return fmt.Sprintf("has %d bytes free above storageReserved, and the image takes %d", max(d.available, 0),
			p.status.RealSize)
	case left:
		return "still has a copy that is being deleted"
	case failed != nil && failed.State == longhornv1.StateFailed:
		return "had a copy that failed (" + failed.Message + ")"
	}
	return ""
}

func hasTags(have, want []string) bool {
	return !slices.ContainsFunc(want, func(tag string) bool { return !slices.Contains(have, tag) })
}
