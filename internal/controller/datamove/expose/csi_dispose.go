package expose

import (
	"context"
	"slices"
	"strings"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
)

// Dispose removes the claim, its volume, the snapshot on the storage and all objects that represent it, in whatever state they are, and
// also if Expose was never called: Velero leaves a snapshot behind when it gives a DataUpload up. The snapshot of an upload that has succeeded
// may be handed over instead (keepOwn).
func (e *CSI) Dispose(ctx context.Context, upload *velerov2.DataUpload) (Progress, error) {
	s, err := e.observe(ctx, upload)
	if err != nil {
		return Progress{}, err
	}
	if s.note == nil || s.note.Content == "" {
		if err := e.noteForDisposal(ctx, s); err != nil {
			return Progress{}, err
		}
	}
	progress, err := e.disposeAll(ctx, s)
	if err != nil {
		return Progress{}, err
	}
	left := slices.Concat(s.sourceStrangers, s.childStrangers)
	if progress.Left != "" {
		left = append(left, progress.Left)
	}
	progress.Left = strings.Join(left, "; ")
	return progress, nil
}

// disposeAll goes from what was made last to what was made first: a driver may refuse to delete a snapshot that a volume comes from.
func (e *CSI) disposeAll(ctx context.Context, s *snapshotState) (Progress, error) {
	if s.note == nil {
		s.note = &snapshotNote{} // nothing was begun, and there is no source
	}
	save := func() error {
		if s.note.Version == 0 {
			return nil
		}
		return e.remember(ctx, s.upload, s.note)
	}
	progress, err := e.disposeVolume(ctx, s.claim, &s.note.Volume, save)
	if err != nil || !progress.Done {
		return progress, err
	}
	waiting, err := e.disposeSnapshot(ctx, s)
	return Progress{Done: err == nil && waiting == "", Waiting: waiting, Left: progress.Left}, err
}

// noteForDisposal notes a source that nobody has examined, or its content, which may come late. What is not certainly the DataUpload's is
// left alone.
func (e *CSI) noteForDisposal(ctx context.Context, s *snapshotState) error {
	if s.source == nil {
		return nil
	}
	stranger := compareSource(s.upload, s.source)
	content, err := e.contentOf(ctx, s.source)
	if err != nil {
		return err
	}
	if stranger == "" && content != nil {
		stranger = compareContent(s.source, content)
	}
	if stranger != "" {
		s.sourceStrangers = append(s.sourceStrangers, stranger)
		s.source = nil
		return nil
	}
	note := noteOf(s.source, content)
	if err := e.remember(ctx, s.upload, note); err != nil {
		return err
	}
	s.note, s.sourceContent = note, content
	return nil
}

// disposeSnapshot deletes the snapshot through the one content that can do so for certain: the own one, once it is bound and its
// snapshotter knows it, and before that the source's.
func (e *CSI) disposeSnapshot(ctx context.Context, s *snapshotState) (string, error) {
	if s.sourceContent == nil || s.isDeletable() {
		if waiting, err := e.releaseSource(ctx, s); err != nil || waiting != "" {
			return waiting, err
		}
		if kept, err := e.keepOwn(ctx, s); err != nil || kept {
			return "", err
		}
		return e.disposeOwn(ctx, s)
	}
	if waiting, err := e.giveBack(ctx, s); err != nil || waiting != "" {
		return waiting, err
	}
	if err := e.setContentPolicy(ctx, s.sourceContent, snapshotv1.VolumeSnapshotContentDelete); err != nil {
		return "", err
	}
	return e.removeBoth(ctx, s.source, s.sourceContent)
}

// releaseSource deletes the source's VolumeSnapshot and content, and leaves the snapshot on the storage to the own content.
func (e *CSI) releaseSource(ctx context.Context, s *snapshotState) (string, error) {
	if s.sourceContent != nil {
		if err := e.setContentPolicy(ctx, s.sourceContent, snapshotv1.VolumeSnapshotContentRetain); err != nil {
			return "", err
		}
	}
	return e.removeBoth(ctx, s.source, s.sourceContent)
}

// giveBack deletes the own VolumeSnapshot and content, and leaves the snapshot on the storage to the source's content.
func (e *CSI) giveBack(ctx context.Context, s *snapshotState) (string, error) {
	if s.content != nil {
		if err := e.setContentPolicy(ctx, s.content, snapshotv1.VolumeSnapshotContentRetain); err != nil {
			return "", err
		}
	}
	return e.removeBoth(ctx, s.snapshot, s.content)
}

// disposeOwn deletes the own VolumeSnapshot, and with it its content and the snapshot on the storage. Nobody else has them any more.
func (e *CSI) disposeOwn(ctx context.Context, s *snapshotState) (string, error) {
	if s.content == nil {
		return e.removeBoth(ctx, s.snapshot, nil)
	}
	if err := e.setContentPolicy(ctx, s.content, snapshotv1.VolumeSnapshotContentDelete); err != nil {
		return "", err
	}
	bound := s.content.Spec.VolumeSnapshotRef.UID
	if bound == "" && s.snapshot == nil && s.content.DeletionTimestamp == nil {
		// Without a VolumeSnapshot, the deletion of the content would leave the snapshot on the storage.
		if err := e.makeSnapshot(ctx, s); err != nil {
			return "", err
		}
	}
	if s.content.DeletionTimestamp == nil && s.snapshot != nil && s.snapshot.DeletionTimestamp == nil && !s.isDeletable() {
		detail := ""
		if s.content.Status != nil && s.content.Status.Error != nil && s.content.Status.Error.Message != nil {
			detail = *s.content.Status.Error.Message
		}
		return withDetail(describe(s.content)+" to be bound and to have the handle of its snapshot, so that its deletion deletes the snapshot", detail), nil
	}
	return e.removeBoth(ctx, s.snapshot, s.content)
}

// removeBoth deletes a VolumeSnapshot and, when it is gone, its content. Each may be nil. Whether that deletes the snapshot on the storage
// is decided by the content's policy; if so, the content goes with its VolumeSnapshot.
func (e *CSI) removeBoth(ctx context.Context, snapshot *snapshotv1.VolumeSnapshot, content *snapshotv1.VolumeSnapshotContent) (string, error) {
	if snapshot != nil {
		gone, err := e.remove(ctx, snapshot)
		if err != nil {
			return "", err
		}
		if !gone {
			return describeRemoval(snapshot), nil
		}
	}
	if content != nil {
		gone, err := e.remove(ctx, content)
		if err != nil {
			return "", err
		}
		if !gone {
			return describeRemoval(content), nil
		}
	}
	return "", nil
}
