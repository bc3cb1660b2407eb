package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/diskguard"
	"github.com/varvebackup/varve/internal/store/diskset"
	"github.com/varvebackup/varve/internal/store/metric"
	"github.com/varvebackup/varve/internal/store/reflink"
	"github.com/varvebackup/varve/internal/store/scrub"
)

// defaultDiskName is the name of the disk that the agent adds to its Node.
const defaultDiskName = "default-disk"

// reasonNoDisk is the reason of a Node's condition Ready if none of its disks can be used.
const reasonNoDisk = "NoDiskReady"

// diskFiles are the files of a disk.
type diskFiles interface {
	disk.Disk
	// CloseUnused closes them unless an object is in use, and Close in any case.
	CloseUnused() error
	Close() error
	// Recovered says what was not in order.
	Recovered() []string
}

func openReflink(ctx context.Context, dir string) (diskFiles, error) {
	return reflink.Open(ctx, dir, reflink.Options{})
}

// openDisk is a disk that is in the set.
type openDisk struct {
	// Disk is guarded, and files is not.
	diskset.Disk

	files diskFiles
	guard *diskguard.Guard
	// specPath is spec.disks[].path.
	specPath string
	// realSizes are how many bytes images take, which never changes.
	realSizes map[disk.UID]int64
	// pieceSums are those of images, see disk.SumPieces.
	pieceSums map[disk.UID]string
}

// diskState is what was found out about a disk now.
type diskState struct {
	name string
	// open is nil if the disk cannot be used. It is not nil for a disk that has left spec.disks and is still in use.
	open   *openDisk
	spec   longhornv1.DiskSpec
	wanted bool // it is in spec.disks
	// slow: nothing was found out now, because the disk has not answered yet. All stays as it was.
	slow  bool
	usage disk.Usage
	err   error // why it cannot be used
	// objects are what is on the disk, and notes what is wrong with some of them.
	objects []disk.Object
	notes   []string
	// scrubbed is what the scrub knows of the disk, or nil.
	scrubbed *scrub.Status
	// images are the copies on the disk that belong to images.
	images []metric.Image
	// deletable are the UUIDs of images, and the names of volumes, that a user allows to be deleted if no object has them.
	deletable map[string]bool
}

// freeBytes returns how many bytes may be added to the disk. It is negative if less is free than is reserved.
func (s *diskState) freeBytes() int64 { return s.usage.Available - s.spec.StorageReserved }

// findNode returns the agent's Node, which it makes if it is missing.
func (a *agent) findNode(ctx context.Context) (*longhornv1.Node, error) {
	node := &longhornv1.Node{}
	key := client.ObjectKey{Namespace: a.Namespace, Name: a.Node}
	err := a.cached.Get(ctx, key, node)
	if apierrors.IsNotFound(err) {
		err = a.live.Get(ctx, key, node)
	}
	if !apierrors.IsNotFound(err) {
		if err != nil {
			err = fmt.Errorf("read the node %s: %w", a.Node, err)
		}
		return node, err
	}
	node = &longhornv1.Node{ObjectMeta: metav1.ObjectMeta{Namespace: a.Namespace, Name: a.Node}}
	node.Spec.AllowScheduling = true
	if a.DefaultDisk != "" {
		node.Spec.Disks = map[string]longhornv1.DiskSpec{
			defaultDiskName: {
				Type: longhornv1.DiskTypeFilesystem, Path: a.DefaultDisk, AllowScheduling: true,
			},
		}
	}
	if err := a.live.Create(ctx, node); err != nil {
		return nil, fmt.Errorf("make the node %s: %w", a.Node, err)
	}
	return node, nil
}

// reserveSpace has a tenth of the default disk stay free for the writes of its volumes, once: when the disk is opened
// for the first time, because only then its file system is known to be mounted. A value that a user has set stays.
func (a *agent) reserveSpace(ctx context.Context, cached *longhornv1.Node, states []*diskState) error {
	i := slices.IndexFunc(states, func(s *diskState) bool { return s.name == defaultDiskName })
	if i < 0 || !a.lacksReserve(cached) {
		return nil
	}
	s := states[i]
	reserved := s.usage.Capacity / 10
	if s.open == nil || !s.wanted || reserved == 0 {
		return nil
	}
	node := &longhornv1.Node{}
	if err := a.live.Get(ctx, client.ObjectKey{Namespace: a.Namespace, Name: a.Node}, node); err != nil {
		return fmt.Errorf("read the node %s: %w", a.Node, err)
	}
	if !a.lacksReserve(node) {
		return nil // the cache is behind
	}
	base := node.DeepCopy()
	d := node.Spec.Disks[defaultDiskName]
	d.StorageReserved = reserved
	node.Spec.Disks[defaultDiskName] = d
	patch := client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})
	if err := a.live.Patch(ctx, node, patch); err != nil {
		return fmt.Errorf("write spec.disks[%s].storageReserved of the node %s: %w", defaultDiskName, a.Node, err)
	}
	s.spec.StorageReserved = reserved
	return nil
}

// lacksReserve says whether the default disk has never been open, as far as the Node says, and reserves nothing.
func (a *agent) lacksReserve(node *longhornv1.Node) bool {
	d, ok := node.Spec.Disks[defaultDiskName]
	status := node.Status.DiskStatus[defaultDiskName]
	return ok && d.Path == a.DefaultDisk && d.StorageReserved == 0 && (status == nil || status.DiskUUID == "")
}

// lookAtDisks opens the disks that are wanted, closes the others, and says what each is like. The result is sorted by
// names. All disks are looked at beside the loop, and at the same time: one that does not answer holds up no other one.
func (a *agent) lookAtDisks(ctx context.Context, node *longhornv1.Node) []*diskState {
	maps.DeleteFunc(a.known, func(name string, _ disk.UID) bool {
		_, ok := node.Spec.Disks[name]
		return !ok
	})
	states := a.closeRemoved(ctx, node)
	for name, spec := range node.Spec.Disks {
		s := &diskState{name: name, spec: spec, wanted: true}
		s.deletable = parseUUIDs(node.Annotations[longhornv1.AnnotationDeleteOrphans])
		if before := node.Status.DiskStatus[name]; before != nil && before.DiskUUID != "" {
			a.known[name] = disk.UID(before.DiskUUID)
		}
		s.err = a.startLook(ctx, s)
		states = append(states, s)
	}
	a.awaitLooks(ctx)
	for _, s := range states {
		if s.wanted && s.err == nil {
			s.err = a.finishLook(ctx, s)
		}
	}
	slices.SortFunc(states, func(x, y *diskState) int { return cmp.Compare(x.name, y.name) })
	return states
}

// closeRemoved closes the disks that have left spec.disks, and returns those that stay because they are in use.
func (a *agent) closeRemoved(ctx context.Context, node *longhornv1.Node) (states []*diskState) {
	for name, l := range a.looks {
		if _, ok := node.Spec.Disks[name]; !ok && l.isDone() {
			a.adoptDisk(name, l)
		}
	}
	for name, d := range a.disks {
		if _, ok := node.Spec.Disks[name]; ok {
			continue
		}
		if err := a.closeDisk(ctx, d); err != nil {
			s := &diskState{name: name, open: d, spec: longhornv1.DiskSpec{Path: d.specPath}}
			s.err = fmt.Errorf("it is not in spec.disks any more, and stays until nothing on it is in use: %w", err)
			s.usage, _ = d.Usage(ctx) // nothing depends on them any more
			s.objects, _ = d.List(ctx)
			states = append(states, s)
		}
	}
	return states
}

// missingDisk says what to do about a disk that is not where it was.
func missingDisk(uuid disk.UID, path string, err error) error {
	return errclass.Errorf(errclass.NotFound, "the disk %s is not mounted at %s (%w): mount it, or remove the disk from "+
		"spec.disks and add it under another name", uuid, path, err)
}

// openDisk opens a disk of spec.disks, and formats an empty directory unless a disk was there before. Others see the
// disk when it is adopted.
func (a *agent) openDisk(
	ctx context.Context, name string, spec longhornv1.DiskSpec, known disk.UID, guard *diskguard.Guard,
) (*openDisk, error) {
	root := cmp.Or(a.HostRoot, "/")
	dir := filepath.Join(root, spec.Path)
	found, err := findDisk(root, name, spec, known)
	if err != nil {
		return nil, err
	}
	if other, err := a.Disks.Find(found); err == nil {
		return nil, errclass.Errorf(errclass.Conflict, "the disk %s is open as spec.disks[%s]: remove one of the two", found,
			other.Name)
	}
	files, err := a.openFiles(ctx, dir)
	if err != nil {
		return nil, err
	}
	d := &openDisk{
		files: files, guard: guard, specPath: spec.Path, realSizes: map[disk.UID]int64{}, pieceSums: map[disk.UID]string{},
	}
	d.Disk = diskset.Disk{Disk: files, Name: name, UUID: found, Path: dir}
	if a.Opened != nil {
		if err := a.Opened(ctx, d.Disk); err != nil {
			return nil, errors.Join(fmt.Errorf("open the volumes of disk %s that are attached: %w", found, err), files.Close())
		}
	}
	d.Disk.Disk = guard.Wrap(files)
	return d, nil
}

// findDisk returns the UUID of a disk of spec.disks, whose directory it formats if it is empty and no disk was there
// before. The node's file system is below root.
func findDisk(root, name string, spec longhornv1.DiskSpec, known disk.UID) (disk.UID, error) {
	path, dir := spec.Path, filepath.Join(root, spec.Path)
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		err = errclass.Errorf(errclass.NotFound, "the directory %s does not exist on the node", path)
	case err == nil && !info.IsDir():
		err = errclass.Errorf(errclass.Invalid, "%s is not a directory: correct spec.disks[%s].path", path, name)
	}
	switch {
	case err != nil && known != "":
		return "", missingDisk(known, path, err)
	case errors.Is(err, errclass.NotFound):
		return "", fmt.Errorf("%w: make it, on XFS or btrfs, or correct spec.disks[%s].path", err, name)
	case err != nil:
		return "", err
	}
	found, err := reflink.ReadUUID(dir)
	switch {
	case errors.Is(err, errclass.NotFound) && known != "":
		return "", missingDisk(known, path, err)
	case errors.Is(err, errclass.NotFound):
		if err := checkNotOnRoot(root, name, spec); err != nil {
			return "", err
		}
		return formatDisk(dir)
	case err == nil && known != "" && found != known:
		return "", missingDisk(known, path, fmt.Errorf("the disk %s is there", found))
	}
	return found, err
}

// checkNotOnRoot returns an error if the directory of a disk that would be made is on the node's root file system, unless
// the disk has TagRootFilesystem: probably the disk's own file system is not mounted.
func checkNotOnRoot(root, name string, spec longhornv1.DiskSpec) error {
	var ofRoot, ofDisk unix.Stat_t
	if err := errors.Join(unix.Stat(root, &ofRoot), unix.Stat(filepath.Join(root, spec.Path), &ofDisk)); err != nil {
		return err
	}
	if ofRoot.Dev != ofDisk.Dev || slices.Contains(spec.Tags, longhornv1.TagRootFilesystem) {
		return nil
	}
	return errclass.Errorf(errclass.Invalid, "%s is on the root file system of the node, which images and volumes could "+
		"fill: mount an XFS or btrfs file system there, or add %q to spec.disks[%s].tags if the disk is to be there",
		spec.Path, longhornv1.TagRootFilesystem, name)
}

// formatDisk makes an empty directory a disk, if its file system is fit for that.
func formatDisk(dir string) (disk.UID, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	if len(entries) == 0 {
		if err := reflink.CheckDirectory(dir); err != nil {
			return "", err
		}
	}
	made := disk.UID(uuid.NewString())
	return made, reflink.Format(dir, made)
}

// closeUnused closes the files of a disk, unless an object of it is in use.
func (d *openDisk) closeUnused(ctx context.Context) error {
	_, err := diskguard.Do(ctx, d.guard, "close it", nil, func(context.Context) (struct{}, error) {
		return struct{}{}, d.files.CloseUnused()
	})
	return err
}

// closeDisk takes a disk out of the set, unless an object of it is in use.
func (a *agent) closeDisk(ctx context.Context, d *openDisk) error {
	if err := d.guard.Check(); err != nil { // and its jobs do not end
		return fmt.Errorf("%w; if it is gone for good, restart the store's pod", err)
	}
	if err := a.cancelJobs(d.UUID); err != nil {
		return err
	}
	if err := d.closeUnused(ctx); err != nil {
		return err
	}
	a.Disks.Remove(d.UUID)
	delete(a.disks, d.Name)
	return nil
}

// writeNode writes what the disks are like. Numbers that change alone wait for heartbeatInterval.
func (a *agent) writeNode(ctx context.Context, cached *longhornv1.Node, states []*diskState) error {
	next := cached.DeepCopy()
	a.describeNode(next, states)
	if a.Clock.Since(a.nodeWrittenAt) < heartbeatInterval && equality.Semantic.DeepEqual(
		withoutSpace(cached.Status), withoutSpace(next.Status)) {
		return nil
	}
	node := &longhornv1.Node{}
	if err := a.live.Get(ctx, client.ObjectKey{Namespace: a.Namespace, Name: a.Node}, node); err != nil {
		return fmt.Errorf("read the node %s: %w", a.Node, err)
	}
	before := node.Status.DeepCopy()
	a.describeNode(node, states)
	if equality.Semantic.DeepEqual(before, &node.Status) {
		a.nodeWrittenAt = a.Clock.Now()
		return nil
	}
	if err := a.live.Status().Update(ctx, node); err != nil {
		return fmt.Errorf("write the status of node %s: %w", a.Node, err)
	}
	a.nodeWrittenAt = a.Clock.Now()
	return nil
}

// withoutSpace returns a status without what changes with each write to a disk.
func withoutSpace(status longhornv1.NodeStatus) *longhornv1.NodeStatus {
	out := status.DeepCopy()
	for _, d := range out.DiskStatus {
		d.StorageAvailable, d.StorageScheduled, d.ScrubProgress = 0, 0, 0
		for i := range d.Conditions {
			if d.Conditions[i].Reason == longhornv1.ReasonDiskPressure {
				d.Conditions[i].Message = ""
			}
		}
	}
	return out
}

// describeNode fills in the status of a Node. A disk that cannot be used keeps what was known of it.
func (a *agent) describeNode(node *longhornv1.Node, states []*diskState) {
	statuses := map[string]*longhornv1.DiskStatus{}
	ready := 0
	for _, s := range states {
		status := &longhornv1.DiskStatus{}
		if before := node.Status.DiskStatus[s.name]; before != nil {
			status = before.DeepCopy()
		}
		if s.slow && len(status.Conditions) > 0 {
			statuses[s.name] = status
			if meta.IsStatusConditionTrue(status.Conditions, longhornv1.ConditionReady) {
				ready++
			}
			continue
		}
		status.DiskPath = s.spec.Path
		if s.open != nil {
			status.DiskUUID = string(s.open.UUID)
			status.StorageMaximum, status.StorageAvailable = s.usage.Capacity, s.usage.Available
			status.StorageScheduled = scheduledBytes(s.objects)
		}
		c := s.condition()
		if c.Status == metav1.ConditionTrue {
			ready++
		}
		c.LastTransitionTime = metav1.NewTime(a.Clock.Now())
		meta.SetStatusCondition(&status.Conditions, c)
		a.describeScrub(status, s.scrubbed)
		statuses[s.name] = status
	}
	node.Status.DiskStatus = statuses
	c := metav1.Condition{
		Type: longhornv1.ConditionReady, Status: metav1.ConditionTrue, Reason: longhornv1.ReasonDiskReady,
		Message:            fmt.Sprintf("%d of %d disks are ready", ready, len(states)),
		LastTransitionTime: metav1.NewTime(a.Clock.Now()),
	}
	if ready == 0 {
		c.Status, c.Reason = metav1.ConditionFalse, reasonNoDisk
	}
	meta.SetStatusCondition(&node.Status.Conditions, c)
}

// scheduledBytes returns the sum of the sizes of volumes. Heads in which images are made are larger than any image.
func scheduledBytes(objects []disk.Object) int64 {
	var sum int64
	for _, o := range objects {
		if _, _, ofImage := copyOf(o); o.Kind == disk.KindHead && !ofImage {
			sum += o.Bytes
		}
	}
	return sum
}

// maxMessage is the length of the longest message of a condition.
const maxMessage = 2000

// condition returns the condition Ready of a disk.
func (s *diskState) condition() metav1.Condition {
	c := metav1.Condition{
		Type: longhornv1.ConditionReady, Status: metav1.ConditionTrue, Reason: longhornv1.ReasonDiskReady,
		Message: strings.Join(s.notes, "; "),
	}
	switch {
	case s.slow:
		c.Status, c.Reason = metav1.ConditionUnknown, longhornv1.ReasonDiskSilent
		c.Message = "the store waits for the disk's first answer"
	case errors.Is(s.err, diskguard.ErrSilent):
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, longhornv1.ReasonDiskSilent, s.err.Error()
	case s.err != nil:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, longhornv1.ReasonDiskUnusable, s.err.Error()
	case s.freeBytes() < 0:
		c.Status, c.Reason = metav1.ConditionFalse, longhornv1.ReasonDiskPressure
		c.Message = fmt.Sprintf("%d bytes are free, and spec.disks[%s].storageReserved is %d: free or add space",
			s.usage.Available, s.name, s.spec.StorageReserved)
	}
	c.Message = shortenMessage(c.Message)
	return c
}

// shortenMessage makes a message fit into a condition.
func shortenMessage(message string) string {
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage], "") + "…"
	}
	return message
}
