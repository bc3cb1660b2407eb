package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/diskguard"
	"github.com/varvebackup/varve/internal/store/handover"
	"github.com/varvebackup/varve/internal/store/names"
)

// lookAtCopies brings the copies on all disks nearer to what is wanted. Busy means that progress is to be reported.
func (a *agent) lookAtCopies(
	ctx context.Context, states []*diskState, images []longhornv1.BackingImage,
) (busy bool, err error) {
	wantedCopies := map[copyKey]bool{}
	reports := map[copyKey]longhornv1.BackingImageV2CopyInfo{}
	left := a.leaveCopies(states, reports)
	a.findReplicas(ctx, states)
	for _, s := range states {
		if s.open == nil || !s.wanted {
			continue
		}
		for i := range images {
			image := &images[i]
			if _, wanted := image.Spec.DiskFileSpecMap[string(s.open.UUID)]; !wanted || image.Status.UUID == "" ||
				image.DeletionTimestamp != nil {
				continue
			}
			info := a.lookAtCopy(ctx, s, image, images)
			busy = busy || info.State == longhornv1.StateInProgress
			key := copyKey{info.DiskUUID, info.UUID}
			reports[key], wantedCopies[key] = info, true
		}
		for key, info := range a.clearDisk(ctx, s, images) {
			reports[key] = info
		}
		s.scrubbed = a.scrubStatus(s.open)
		s.images = measureImages(s, images)
		s.notes = slices.Concat(describeDamage(s.objects, images), a.describeHeads(s.objects),
			a.deleteOrphans(ctx, s, images))
		if a.Orphans != nil {
			s.notes = append(s.notes, a.Orphans(ctx, s.open.Disk, s.deletable)...)
		}
	}
	for key, s := range a.copies {
		switch {
		case wantedCopies[key], left[key.diskUUID]:
		case s.job == nil, s.job.isDone():
			delete(a.copies, key)
		default:
			s.job.cancel()
		}
	}
	a.setReported(reports)
	return busy, ctx.Err()
}

// leaveCopies returns the disks that do not answer, whose copies are left alone. As long as a disk is only slow, its
// copies are reported as they were.
func (a *agent) leaveCopies(
	states []*diskState, reports map[copyKey]longhornv1.BackingImageV2CopyInfo,
) map[string]bool {
	left := map[string]bool{}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range states {
		d := a.disks[s.name]
		if d == nil || s.open != nil {
			continue
		}
		left[string(d.UUID)] = true
		for key, info := range a.reported {
			if s.slow && key.diskUUID == string(d.UUID) {
				reports[key] = info
			}
		}
	}
	return left
}

// stateOf returns what is remembered of a copy.
func (a *agent) stateOf(key copyKey) *copyState {
	s := a.copies[key]
	if s == nil {
		s = &copyState{}
		a.copies[key] = s
	}
	return s
}

// lookAtCopy does the next step for a copy that is wanted, and says what to report of it.
func (a *agent) lookAtCopy(
	ctx context.Context, s *diskState, image *longhornv1.BackingImage, images []longhornv1.BackingImage,
) longhornv1.BackingImageV2CopyInfo {
	key := copyKey{string(s.open.UUID), image.Status.UUID}
	state := a.stateOf(key)
	if a.finishJob(state, image.Status.FirstCopyAttempts) { // which may have made something since the disk was listed
		if objects, err := s.open.List(ctx); err == nil {
			s.objects = objects
		}
	}
	v := a.viewOf(ctx, s, image, images, state)
	d := decide(v)
	if !a.act(ctx, s, v, d) {
		d.message = fmt.Sprintf("it waits, because %d other copies are being made on this node", maxJobs)
	}
	info := longhornv1.BackingImageV2CopyInfo{
		Name: image.Name, UUID: image.Status.UUID, DiskUUID: key.diskUUID, State: d.state, Progress: d.progress,
		Message: d.message, Size: v.record.Bytes,
	}
	switch d.state {
	case longhornv1.StateInProgress:
		state.progress = d.progress
	case longhornv1.StateFailed:
		info.RefusedChecksum, info.DiskFull = state.refused, state.gaveUp
	case longhornv1.StatePending, longhornv1.StateReady, longhornv1.StateUnknown:
	}
	if d.state == longhornv1.StateReady {
		if request := image.Annotations[longhornv1.AnnotationCheckCopy+key.diskUUID]; a.scrubber != nil && request != "" {
			a.scrubber.RequestCheck(s.open.UUID, v.copy.UID, request)
		}
		info.PiecesChecksum = s.open.sumPieces(ctx, *v.copy)
		info.Size, info.CurrentChecksum, info.RealSize = v.copy.Bytes, v.copy.Checksum, v.realSize
	} else if v.making != nil {
		info.Size = v.making.Bytes
	}
	return info
}

// viewOf finds out all that the decision about a copy depends on.
func (a *agent) viewOf(
	ctx context.Context, s *diskState, image *longhornv1.BackingImage, images []longhornv1.BackingImage, state *copyState,
) view {
	v := view{image: image, diskUUID: string(s.open.UUID), free: s.freeBytes(), state: state, now: a.Clock.Now()}
	for i := range s.objects {
		o := &s.objects[i]
		switch o.Name {
		case names.Image(image.Name, image.Status.UUID):
			v.copy = o
		case names.SourceHead(image.Status.UUID):
			v.source = o
		case names.Copy(image.Status.UUID):
			v.making = o
		}
	}
	if v.copy != nil {
		v.realSize = s.open.realSize(ctx, *v.copy)
		v.mayRepair = a.scrubber != nil && len(disksToRepairFrom(image, v.diskUUID)) > 0 &&
			a.scrubber.MayRepair(s.open.UUID, v.copy.UID)
	}
	switch {
	case v.copy != nil:
	case image.Spec.SourceType.IsLocal():
		v.origin, v.recordErr = findOrigin(ctx, s, image, images)
	case v.source == nil || v.source.State != disk.StateWritable:
	case state.job != nil && state.job.what == actionSeal:
		v.record = state.record // to read it would be a use of the head, which is cloned now
	default:
		v.sourceUsers, v.record, v.recordErr = a.readSource(ctx, s.open, v.source.Name)
		state.record = v.record
	}
	return v
}

// readSource says who uses the head of a source, and what the source has written of itself.
func (a *agent) readSource(ctx context.Context, d *openDisk, head disk.Name) (int, handover.Record, error) {
	type content struct {
		users  int
		record handover.Record
	}
	read := func(ctx context.Context) (c content, err error) {
		if c.users, err = d.files.Users(ctx, head); err != nil {
			return content{}, err
		}
		err = withFile(ctx, d.files, head, os.O_RDONLY, func(f *os.File) (err error) {
			c.record, err = handover.Read(f)
			return err
		})
		return c, err
	}
	c, err := diskguard.Do(ctx, d.guard, "read "+string(head), nil, read)
	return c.users, c.record, err
}

// withFile opens the file of an object for do, and keeps the object from being deleted meanwhile.
func withFile(ctx context.Context, d disk.Disk, name disk.Name, flags int, do func(*os.File) error) (err error) {
	lease, err := d.Open(ctx, name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lease.Close()) }()
	f, err := os.OpenFile(lease.Path(), flags, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return do(f)
}

// realSize returns how many bytes an image takes, or 0 if that cannot be found out now.
func (d *openDisk) realSize(ctx context.Context, image disk.Object) int64 {
	if n, ok := d.realSizes[image.UID]; ok || image.State != disk.StateReady {
		return n
	}
	measure := func(ctx context.Context) (n int64, err error) {
		for e, err := range d.files.Changed(ctx, image.Name, "") {
			if err != nil {
				return 0, err
			}
			n += e.Length
		}
		return n, nil
	}
	n, err := diskguard.Do(ctx, d.guard, "measure "+string(image.Name), nil, measure)
	if err != nil {
		return 0
	}
	d.realSizes[image.UID] = n
	return n
}

// sumPieces returns the hash of all hashes of an image's pieces, or "" if that cannot be found out now.
func (d *openDisk) sumPieces(ctx context.Context, image disk.Object) string {
	sum, ok := d.pieceSums[image.UID]
	if ok || image.State != disk.StateReady {
		return sum
	}
	pieces, err := d.Pieces(ctx, image.Name)
	if err != nil {
		return "" // readers of the copy find that out, and say so
	}
	sum = disk.SumPieces(pieces)
	d.pieceSums[image.UID] = sum
	return sum
}

// act does what was decided, or returns false if that has to wait for other copies. What fails is tried again.
func (a *agent) act(ctx context.Context, s *diskState, v view, d decision) bool {
	uuid := v.image.Status.UUID
	image, open := v.image.DeepCopy(), s.open
	switch d.action {
	case actionCreateSource:
		create := func(ctx context.Context, _ *job) error { return createSource(ctx, open, uuid) }
		return a.startJob(ctx, v.state, d.action, create)
	case actionSeal:
		return a.startJob(ctx, v.state, d.action, func(ctx context.Context, j *job) error {
			return a.sealSource(ctx, open, image, disk.Seal{Bytes: v.record.Bytes, Checksum: image.Spec.Checksum}, j)
		})
	case actionCloneImage:
		from := *v.origin.object
		return a.startJob(ctx, v.state, d.action, func(ctx context.Context, _ *job) error {
			return cloneImage(ctx, open, uuid, from)
		})
	case actionSealClone:
		return a.startJob(ctx, v.state, d.action, func(ctx context.Context, j *job) error {
			return a.sealClone(ctx, open, image, v, j)
		})
	case actionExport:
		head := *v.origin.object
		return a.startJob(ctx, v.state, d.action, func(ctx context.Context, j *job) error {
			return a.exportVolume(ctx, open, image, head, j)
		})
	case actionSync:
		turn := v.state.turn
		return a.startJob(ctx, v.state, d.action, func(ctx context.Context, j *job) error {
			return a.syncCopy(ctx, open, image, turn, j)
		})
	case actionDeleteHeads:
		for _, o := range []*disk.Object{v.source, v.making} {
			if o != nil {
				a.deleteHead(ctx, open, o.Name)
			}
		}
	case actionGiveUp:
		v.state.giveUp(d.message, v.now, isFirstCopy(v.image, v.diskUUID), v.image.Status.FirstCopyAttempts)
		a.wakeUp() // to delete the heads
	case actionDeleteSource:
		a.deleteHead(ctx, open, v.source.Name)
	case actionNone:
	}
	return true
}

// deleteHead deletes a head that nobody needs any more, unless it is still in use: then the next look does.
func (a *agent) deleteHead(ctx context.Context, d *openDisk, head disk.Name) {
	if err := d.Delete(ctx, head); err != nil && !errors.Is(err, errclass.NotFound) {
		a.Logger.Info("the head of an image stays for now", "disk", d.UUID, "head", head, "error", err)
	}
}

// copyOf returns the name and the UUID of the image whose copy an object is, or whose copy is made in it. The name is
// empty if the object does not say it.
func copyOf(o disk.Object) (image, uuid string, ok bool) {
	if image, uuid, ok := names.IsImage(o.Name); ok && o.Kind == disk.KindImage {
		return image, uuid, true
	}
	for _, prefix := range []string{"source/", "copy/"} {
		if uuid, ok := strings.CutPrefix(string(o.Name), prefix); ok && o.Kind == disk.KindHead {
			return "", uuid, true
		}
	}
	return "", "", false
}

// findImage returns the image whose copy has a UUID, and a name unless that is empty. It is nil if none is in the list.
func findImage(images []longhornv1.BackingImage, name, uuid string) *longhornv1.BackingImage {
	for i := range images {
		if images[i].Status.UUID == uuid && (name == "" || images[i].Name == name) {
			return &images[i]
		}
	}
	return nil
}

// clearDisk deletes copies that nobody wants any more, and returns what to report of those that are still there.
func (a *agent) clearDisk(
	ctx context.Context, s *diskState, images []longhornv1.BackingImage,
) map[copyKey]longhornv1.BackingImageV2CopyInfo {
	left := map[copyKey]longhornv1.BackingImageV2CopyInfo{}
	for _, o := range s.objects {
		name, uuid, ok := copyOf(o)
		if !ok {
			continue
		}
		image := findImage(images, name, uuid)
		if !isUnwanted(image, uuid, string(s.open.UUID)) {
			continue
		}
		key := copyKey{string(s.open.UUID), uuid}
		info := longhornv1.BackingImageV2CopyInfo{
			Name: image.Name, UUID: uuid, DiskUUID: key.diskUUID, State: longhornv1.StateInProgress,
		}
		if o.Kind == disk.KindImage {
			info.State, info.Progress = longhornv1.StateReady, 100
			info.Size, info.CurrentChecksum = o.Bytes, o.Checksum
		}
		err := a.deleteObject(ctx, s.open, image.Name, uuid, o.Name)
		if err == nil {
			continue
		}
		info.Message = "the copy is to be deleted, and cannot be yet: " + err.Error()
		if before, ok := left[key]; !ok || before.State != longhornv1.StateReady {
			left[key] = info
		}
	}
	return left
}

// deleteObject deletes an object of a copy that is unwanted, as the API server says now.
func (a *agent) deleteObject(ctx context.Context, d *openDisk, image, uuid string, name disk.Name) error {
	if s := a.copies[copyKey{string(d.UUID), uuid}]; s != nil && s.job != nil {
		s.job.cancel()
		if !s.job.isDone() {
			return errclass.Errorf(errclass.Transient, "it is being made, and that ends")
		}
		s.job = nil
	}
	if err := a.confirmUnwanted(ctx, image, uuid, string(d.UUID)); err != nil {
		return err
	}
	if err := d.Delete(ctx, name); err != nil && !errors.Is(err, errclass.NotFound) {
		return err
	}
	return nil
}

// confirmUnwanted asks the API server itself whether a copy is unwanted. Every error means that it may be wanted.
func (a *agent) confirmUnwanted(ctx context.Context, image, uuid, diskUUID string) error {
	var now longhornv1.BackingImage
	err := a.live.Get(ctx, client.ObjectKey{Namespace: a.Namespace, Name: image}, &now)
	switch {
	case apierrors.IsNotFound(err):
		return errclass.Errorf(errclass.Conflict, "the BackingImage %s does not exist: what no image names is not deleted",
			image)
	case err != nil:
		return fmt.Errorf("read the BackingImage %s: %w", image, err)
	case !isUnwanted(&now, uuid, diskUUID):
		return errclass.Errorf(errclass.Conflict, "the BackingImage %s (%s) has the disk %s in spec.diskFileSpecMap, or "+
			"another UUID: remove the disk there", image, now.Status.UUID, diskUUID)
	}
	return nil
}

// deleteOrphans deletes copies of images that no BackingImage has, and heads of volumes that have no object, if a user
// has written their UUIDs or names into an annotation of the Node. It returns notes of those that cannot be deleted
// yet.
func (a *agent) deleteOrphans(ctx context.Context, s *diskState, images []longhornv1.BackingImage) (notes []string) {
	for _, o := range s.objects {
		_, uuid, isCopy := copyOf(o)
		handle, isVolume := volumeOf(o)
		var err error
		switch {
		case isCopy && s.deletable[uuid] && findImage(images, "", uuid) == nil:
			err = a.confirmOrphan(ctx, uuid)
		case isVolume && s.deletable[handle]:
			err = a.confirmLost(ctx, handle)
		default:
			continue
		}
		if err == nil {
			err = s.open.Delete(ctx, o.Name)
		}
		switch {
		case err == nil:
			a.Logger.Info("deleted what no object in the API has any more, as the Node's annotation asks",
				"disk", s.name, "object", o.Name, "uid", o.UID)
		case !errors.Is(err, errclass.NotFound):
			notes = append(notes, fmt.Sprintf("%s is to be deleted, and cannot be yet: %v", o.Name, err))
		}
	}
	return notes
}

// confirmOrphan asks the API server itself whether a BackingImage has a UUID.
func (a *agent) confirmOrphan(ctx context.Context, uuid string) error {
	var now longhornv1.BackingImageList
	if err := a.live.List(ctx, &now, client.InNamespace(a.Namespace)); err != nil {
		return fmt.Errorf("list the images: %w", err)
	}
	if image := findImage(now.Items, "", uuid); image != nil {
		return errclass.Errorf(errclass.Conflict, "the BackingImage %s has the UUID %s", image.Name, uuid)
	}
	return nil
}

// parseUUIDs returns the UUIDs and names of a list with commas.
func parseUUIDs(list string) map[string]bool {
	uuids := map[string]bool{}
	for uuid := range strings.SplitSeq(list, ",") {
		if uuid = strings.TrimSpace(uuid); uuid != "" {
			uuids[uuid] = true
		}
	}
	return uuids
}

// describeDamage names what is damaged on a disk, and what belongs to no image.
func describeDamage(objects []disk.Object, images []longhornv1.BackingImage) []string {
	var damaged, orphans []string
	for _, o := range objects {
		if o.State == disk.StateDamaged {
			damaged = append(damaged, fmt.Sprintf("%s (%s)", o.Name, o.UID))
		}
		if name, uuid, ok := copyOf(o); ok && findImage(images, name, uuid) == nil {
			orphans = append(orphans, fmt.Sprintf("%s (%s)", o.Name, o.UID))
		}
	}
	var notes []string
	if len(damaged) > 0 {
		notes = append(notes, "damaged, and to be made again: "+names.ListSome(damaged))
	}
	if len(orphans) > 0 {
		notes = append(notes, fmt.Sprintf("of images that no BackingImage has, so that they are not deleted unless the "+
			"annotation %s of the Node has their UUIDs: %s", longhornv1.AnnotationDeleteOrphans, names.ListSome(orphans)))
	}
	return notes
}
