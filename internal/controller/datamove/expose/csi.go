package expose

import (
	"context"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/reconcile"
)

// CSI exposes the snapshots that DataUploads of the type CSI name.
//
// It makes a content of its own for the same snapshot on the storage, and from it a claim. The order is: the note; the source's content
// gets the policy Retain; the own content, with Delete, and the own VolumeSnapshot; when that is ready, the source's VolumeSnapshot and
// content are deleted. Disposal deletes the own VolumeSnapshot, and with it the snapshot; before it is ready, the source is given its
// policy Delete and is deleted in its place. Velero has no further use for the source, so this holds whatever policy it had.
type CSI struct{ Access }

// snapshotState is what there is for a DataUpload.
type snapshotState struct {
	upload *velerov2.DataUpload
	note   *snapshotNote
	// source and sourceContent are what the DataUpload names; nil if they are gone.
	source        *snapshotv1.VolumeSnapshot
	sourceContent *snapshotv1.VolumeSnapshotContent
	// snapshot, content and claim are Varve's own.
	snapshot *snapshotv1.VolumeSnapshot
	content  *snapshotv1.VolumeSnapshotContent
	claim    *corev1.PersistentVolumeClaim
	// sourceStrangers and childStrangers say which objects have one of these names and are others.
	sourceStrangers, childStrangers []string
}

// Expose makes the next step towards a claim that has the snapshot's data. It may be called again when the volume is there: it goes on
// with the disposal of the source. The DataUpload gets the note and the new resource version.
func (e *CSI) Expose(ctx context.Context, upload *velerov2.DataUpload) (Exposure, error) {
	s, err := e.observe(ctx, upload)
	if err != nil {
		return Exposure{}, err
	}
	if len(s.childStrangers) > 0 {
		return Exposure{}, refuse("%s: delete it", s.childStrangers[0])
	}
	class, err := e.uploadClass(ctx, s)
	if err != nil {
		return Exposure{}, err
	}
	if s.note == nil {
		waiting, err := e.noteSource(ctx, s, class)
		if err != nil || waiting != "" {
			return Exposure{Waiting: waiting}, err
		}
	}
	if waiting, err := e.takeOver(ctx, s); err != nil || waiting != "" {
		return Exposure{Waiting: waiting}, err
	}
	if _, err := e.releaseSource(ctx, s); err != nil {
		return Exposure{}, err
	}
	if s.claim == nil {
		if err := e.makeClaim(ctx, s, class); err != nil {
			return Exposure{}, err
		}
	}
	exposure, err := e.examineClaim(ctx, s.claim, class, s.note.Topology)
	if err != nil || exposure.Volume == nil {
		return exposure, err
	}
	exposure.Volume.SourceUID = s.note.SourceUID
	exposure.Volume.Snapshot, err = e.describeSnapshot(ctx, s)
	return exposure, err
}

// Finish has nothing to do: an upload's data is in the repository.
func (*CSI) Finish(context.Context, *velerov2.DataUpload) (Progress, error) {
	return Progress{Done: true}, nil
}

func (e *CSI) observe(ctx context.Context, upload *velerov2.DataUpload) (*snapshotState, error) {
	note, err := readNote[snapshotNote](upload)
	if err != nil {
		return nil, err
	}
	s := &snapshotState{upload: upload, note: note}
	if err := e.observeSource(ctx, s); err != nil {
		return nil, err
	}
	name := datamove.ChildName(datamove.Upload, upload.UID)
	s.content, err = reconcile.Find(ctx, e.Live, types.NamespacedName{Name: name}, &snapshotv1.VolumeSnapshotContent{})
	if err != nil {
		return nil, err
	}
	s.snapshot, err = reconcile.Find(ctx, e.Live, types.NamespacedName{Namespace: e.Namespace, Name: name}, &snapshotv1.VolumeSnapshot{})
	if err != nil {
		return nil, err
	}
	s.claim, err = e.findClaim(ctx, e.Namespace, name)
	if err != nil {
		return nil, err
	}
	s.dropStrangers()
	return s, nil
}

// observeSource reads the source's objects. Those that have the noted names and other UIDs are strangers.
func (e *CSI) observeSource(ctx context.Context, s *snapshotState) error {
	if s.upload.Spec.CSISnapshot == nil {
		return nil
	}
	key := types.NamespacedName{Namespace: s.upload.Spec.SourceNamespace, Name: s.upload.Spec.CSISnapshot.VolumeSnapshot}
	source, err := reconcile.Find(ctx, e.Live, key, &snapshotv1.VolumeSnapshot{})
	if err != nil {
		return err
	}
	if s.note == nil {
		s.source = source
		return nil
	}
	if source != nil && source.UID != s.note.Snapshot {
		s.sourceStrangers = append(s.sourceStrangers, describe(source)+" is another one than the DataUpload was made for")
		source = nil
	}
	s.source = source
	if s.note.Content == "" {
		return nil
	}
	content, err := reconcile.Find(ctx, e.Live, types.NamespacedName{Name: s.note.Content}, &snapshotv1.VolumeSnapshotContent{})
	if err != nil {
		return err
	}
	if content != nil && content.UID != s.note.ContentUID {
		s.sourceStrangers = append(s.sourceStrangers, describe(content)+" is another one than the DataUpload was made for")
		content = nil
	}
	s.sourceContent = content
	return nil
}

// dropStrangers forgets what has a child's name and was not made for the DataUpload.
func (s *snapshotState) dropStrangers() {
	const text = " was not made by Varve for this DataUpload, and has the name that it needs"
	if s.content != nil && (!isChild(s.upload, s.content) || s.note != nil && s.note.Handle != "" && !s.note.isOf(s.content)) {
		s.childStrangers = append(s.childStrangers, describe(s.content)+text)
		s.content = nil
	}
	if s.snapshot != nil && !isChild(s.upload, s.snapshot) {
		s.childStrangers = append(s.childStrangers, describe(s.snapshot)+text)
		s.snapshot = nil
	}
	if s.claim != nil && !isChild(s.upload, s.claim) {
		s.childStrangers = append(s.childStrangers, describe(s.claim)+text)
		s.claim = nil
	}
}

// isOf says that a content is the noted snapshot on the storage.
func (n *snapshotNote) isOf(content *snapshotv1.VolumeSnapshotContent) bool {
	handle := content.Spec.Source.SnapshotHandle
	return handle != nil && *handle == n.Handle && content.Spec.Driver == n.Driver
}
