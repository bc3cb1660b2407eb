package datamover

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/errclass"
)

// Exposer makes the volume of an object accessible to a mover pod, and disposes of what that took. Each call takes one step, never
// waits, and can be repeated, also by another handler. An error of class errclass.Invalid is a refusal: no repetition helps, and the
// object fails with the error's text. An exposer may write annotations of the object; it updates o with what it wrote.
type Exposer[T client.Object] interface {
	// Expose says what it waits for, or which claim a pod is to mount.
	Expose(ctx context.Context, o T) (Exposure, error)
	// Finish does what is to be done after the data was moved and the pod is gone, such as to hand the volume over.
	Finish(ctx context.Context, o T) (Progress, error)
	// Dispose removes everything that was made for the object, in whatever state that is, and the snapshot that the object names. It
	// is called when no pod is left, also if Expose never was.
	Dispose(ctx context.Context, o T) (Progress, error)
}

// Exposure is how far a volume is.
type Exposure struct {
	// Waiting is what the exposer waits for; "" if Volume is set.
	Waiting string
	// Volume is set when a pod may be made.
	Volume *Volume
	// Diagnosis is what is known about a Volume that is made when a pod needs it, such as why it was not made yet.
	Diagnosis string
}

// Volume is a claim that a mover pod mounts.
type Volume struct {
	// Claim is in Varve's namespace. "" means that the pod gets no volume.
	Claim    string
	Mode     corev1.PersistentVolumeMode
	ReadOnly bool
	Bytes    int64
	// NodeAffinity is where the volume can be reached from; nil: from the driver's node.
	NodeAffinity *corev1.NodeSelector
	// SourceUID is the UID of the claim that an upload is of; "" if that is not known.
	SourceUID types.UID
}

// Progress is how far Finish or Dispose is.
type Progress struct {
	Done bool
	// Waiting is what it waits for; "" if Done.
	Waiting string
	// Left is what it did not touch, because it belongs to somebody else.
	Left string
}

// Deleter deletes the restore point of a completed DataUpload that was deleted.
type Deleter interface {
	// DeletePoint takes one step, as an Exposer does. The DataUpload goes when it is Done.
	DeletePoint(ctx context.Context, o *velerov2.DataUpload) (Progress, error)
}

// isRefusal says that an exposer's error is final.
func isRefusal(err error) bool { return errors.Is(err, errclass.Invalid) }
