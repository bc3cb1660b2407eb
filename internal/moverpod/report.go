package moverpod

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/varvebackup/varve/internal/datamove"
)

const (
	// conflictPause is the pause after somebody else has changed the object.
	conflictPause = 50 * time.Millisecond
	// lastMoments is how long a run that is interrupted tries to write a report that it has.
	lastMoments = 10 * time.Second
)

// report leaves the report on the object. It tries for long, because the work may have to be done again otherwise. It is no error if the
// object is gone, has ended, or has a report.
func (r *run) report(ctx context.Context, report datamove.Report) error {
	report.Pod = r.PodUID
	trying, cancel := r.reportContext(ctx)
	defer cancel()
	var why error
	for attempt := 1; ; attempt++ {
		err := r.tryReport(trying, report)
		if err == nil {
			return nil
		}
		if why == nil || trying.Err() == nil {
			why = err // and not that time was up in the middle of the last try
		}
		wait := r.limits.retry
		if apierrors.IsConflict(err) {
			wait = conflictPause
		} else if attempt == 1 {
			r.Log.Warn("the report was not written; trying again", "error", err)
		}
		if !pause(trying, wait) {
			return fmt.Errorf("the work has ended as %s, and cannot be reported: %w", report.Outcome, why)
		}
	}
}

// reportContext returns the context of a report: an interruption leaves it some time.
func (r *run) reportContext(ctx context.Context) (context.Context, context.CancelFunc) {
	trying, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.limits.report)
	stop := context.AfterFunc(ctx, func() {
		if pause(trying, lastMoments) {
			cancel()
		}
	})
	return trying, func() { stop(); cancel() }
}

func (r *run) tryReport(ctx context.Context, report datamove.Report) error {
	o, err := r.objects.read(ctx)
	if err == nil {
		if why := whyOver(o, r.PodUID); why != "" {
			r.Log.Info("there is nothing to report to", "outcome", report.Outcome, "why", why)
			return nil
		}
		annotations := map[string]any{datamove.AnnotationReport: report.Encode()}
		if o.note != "" {
			annotations[datamove.AnnotationNote] = nil
		}
		_, err = r.objects.patch(ctx, o.version, map[string]any{"annotations": annotations}, nil)
	}
	if errors.Is(err, errGone) {
		r.Log.Info("there is nothing to report to", "outcome", report.Outcome, "why", errGone)
		return nil
	}
	if err != nil {
		return err
	}
	r.Log.Info("reported", "report", report.Encode())
	return nil
}
