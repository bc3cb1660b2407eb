package drive

import (
	"cmp"
	"context"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
)

// ControllerDeletes is a Deleter that waits for the controller, which has restore points deleted by Jobs and says on the DataUpload how far
// that is. The driver has no access to repositories.
type ControllerDeletes struct{}

// DeletePoint returns what the controller says.
func (ControllerDeletes) DeletePoint(_ context.Context, o *velerov2.DataUpload) (Progress, error) {
	d := datamove.PointDeletionOf(o)
	if d.Over() {
		return Progress{Done: true}, nil
	}
	return Progress{Waiting: cmp.Or(d.Message, "the controller has not looked at it yet")}, nil
}
