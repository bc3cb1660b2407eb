package drive

import (
	"context"
	"errors"

	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/controller/datamove/expose"
	"github.com/varvebackup/varve/internal/errclass"
)

// Exposer makes the volume of an object accessible to a mover pod, and disposes of what that took. Each call takes
// one step, never waits, and can be repeated, also by another process. An error of class errclass.Invalid is a
// refusal: no repetition helps, and the object fails with the error's text. An exposer may write annotations of the
// object; it updates o with what it wrote.
type Exposer[T client.Object] interface {
	// Expose says what it waits for, or which claim a pod is to mount.
	Expose(ctx context.Context, o T) (Exposure, error)
	// Finish does what is to be done after the data was moved and the pod is gone, such as to hand the volume over.
	Finish(ctx context.Context, o T) (Progress, error)
	// Dispose removes everything that was made for the object, in whatever state that is, and the snapshot that the object names. It
	// is called when no pod is left, also if Expose never was.
	Dispose(ctx context.Context, o T) (Progress, error)
}

// What exposers answer.
type (
	Exposure = expose.Exposure
	Volume   = expose.Volume
	Progress = expose.Progress
)

// Deleter deletes the restore point of a completed DataUpload that was deleted.
type Deleter interface {
	// DeletePoint takes one step, as an Exposer does. The DataUpload goes when it is Done.
	DeletePoint(ctx context.Context, o *velerov2.DataUpload) (Progress, error)
}

// isRefusal says that an exposer's error is final.
func isRefusal(err error) bool { return errors.Is(err, errclass.Invalid) }
