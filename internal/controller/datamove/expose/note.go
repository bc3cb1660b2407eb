package expose

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/reconcile"
)

// noteVersion is the version of the notes that this package writes and reads.
const noteVersion = 1

// snapshotNote is what CSI remembers on a DataUpload.
type snapshotNote struct {
	Version int `json:"version"`
	// Snapshot is the UID of the VolumeSnapshot that the DataUpload names.
	Snapshot types.UID `json:"snapshot"`
	// Content and ContentUID are its VolumeSnapshotContent; "" if it had none.
	Content    string    `json:"content,omitempty"`
	ContentUID types.UID `json:"contentUID,omitempty"`
	// Handle and Driver say what the snapshot is on the storage, and Policy what the content's policy was.
	Handle string                    `json:"handle,omitempty"`
	Driver string                    `json:"driver,omitempty"`
	Policy snapshotv1.DeletionPolicy `json:"policy,omitempty"`
	// Bytes, VolumeMode, Topology and SourceUID are those of the volume that the snapshot is of.
	Bytes      int64                       `json:"bytes,omitempty"`
	VolumeMode corev1.PersistentVolumeMode `json:"volumeMode,omitempty"`
	Topology   *corev1.NodeSelector        `json:"topology,omitempty"`
	SourceUID  types.UID                   `json:"sourceUID,omitempty"`
	// VolumeHandle is that volume's handle, and Taken when the snapshot was taken, in nanoseconds since 1970; 0: not known.
	VolumeHandle string `json:"volumeHandle,omitempty"`
	Taken        int64  `json:"taken,omitempty"`
	// UnansweredSince is since when the API server has not answered who knows what has changed; nil: it has.
	UnansweredSince *metav1.Time `json:"unansweredSince,omitempty"`
	// Volume is what was made from the snapshot.
	Volume volumeNote `json:"volume,omitzero"`
}

// restoreNote is what Restore remembers on a DataDownload.
type restoreNote struct {
	Version int `json:"version"`
	// Target is the UID of the claim that gets the volume.
	Target types.UID `json:"target"`
	// Volume is what is restored.
	Volume volumeNote `json:"volume,omitzero"`
	// Bound: the target claim has the volume, which is now the target's.
	Bound bool `json:"bound,omitempty"`
}

// volumeNote is a claim in Varve's namespace and its volume.
type volumeNote struct {
	// Claim is the claim's UID.
	Claim types.UID `json:"claim,omitempty"`
	// Name and UID are the volume's; "" while it is not known.
	Name string    `json:"name,omitempty"`
	UID  types.UID `json:"uid,omitempty"`
	// Policy is what the volume's policy was before a restored volume was handed over.
	Policy corev1.PersistentVolumeReclaimPolicy `json:"policy,omitempty"`
}

// readNote reads the note of an object. It returns nil if there is none. A note of another version is an error, which passes when a
// driver of that version takes over.
func readNote[N snapshotNote | restoreNote](o client.Object) (*N, error) {
	text := o.GetAnnotations()[datamove.AnnotationExposed]
	if text == "" {
		return nil, nil
	}
	var version struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal([]byte(text), &version); err != nil {
		return nil, fmt.Errorf("decode %s: %w", datamove.AnnotationExposed, err)
	}
	if version.Version != noteVersion {
		return nil, fmt.Errorf("decode %s: version %d, want %d", datamove.AnnotationExposed, version.Version, noteVersion)
	}
	note := new(N)
	decoder := json.NewDecoder(bytes.NewReader([]byte(text)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(note); err != nil {
		return nil, fmt.Errorf("decode %s: %w", datamove.AnnotationExposed, err)
	}
	return note, nil
}

// remember writes a note to an object, if it has another one. The API server refuses that with a conflict if the object has changed since
// it was read. o gets the note and the new resource version.
func (a Access) remember(ctx context.Context, o client.Object, note any) error {
	text, err := json.Marshal(note)
	if err != nil {
		return fmt.Errorf("encode %s: %w", datamove.AnnotationExposed, err)
	}
	if o.GetAnnotations()[datamove.AnnotationExposed] == string(text) {
		return nil
	}
	changed, ok := o.DeepCopyObject().(client.Object)
	if !ok {
		return fmt.Errorf("%T is no object", o)
	}
	setNote(changed, string(text))
	if err := a.Writer.Patch(ctx, changed, reconcile.MergeFrom(o)); err != nil {
		return fmt.Errorf("note what is exposed for %s: %w", o.GetName(), err)
	}
	setNote(o, string(text))
	o.SetResourceVersion(changed.GetResourceVersion())
	return nil
}

func setNote(o client.Object, text string) {
	annotations := o.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[datamove.AnnotationExposed] = text
	o.SetAnnotations(annotations)
}
