package admission

import (
	"context"
	"fmt"
	"net/http"
	"slices"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/internal/reconcile"
	"github.com/varvebackup/varve/internal/schedule"
)

const (
	// schedulePage is how many schedules are read at a time, which bounds the memory that many of them take.
	schedulePage = 500
	// refusalBytes bounds a message: it may quote what the request has.
	refusalBytes = 1024
)

// scheduleTimes refuses schedules whose times or whose rules of what stays cannot be read, and those that come too near
// to another one. It reads the others live, so that it sees one that was made a moment ago. Two that are made in the
// same moment may both pass: what is near is slow, and not wrong.
type scheduleTimes struct {
	schedules client.Reader
	decoder   admission.Decoder
}

// Handle implements admission.Handler.
func (h *scheduleTimes) Handle(ctx context.Context, req admission.Request) admission.Response {
	o := &harvesterv1.ScheduleVMBackup{}
	if err := h.decoder.Decode(req, o); err != nil {
		return admission.Errored(http.StatusBadRequest, fmt.Errorf("decode the schedule: %w", err))
	}
	timesChange, err := h.changeTimes(req, o)
	if err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	times, err := schedule.ReadTimes(o)
	if err != nil && !timesChange {
		return admission.Allowed("") // it was so before, and its status says so
	}
	if err != nil {
		return refuseSchedule(err)
	}
	if _, err := schedule.ReadPolicy(o, times.Location()); err != nil {
		return refuseSchedule(err)
	}
	if schedule.SkipsCheck(o) || !timesChange {
		return admission.Allowed("")
	}
	check := schedule.NewOffsetCheck(o, times)
	if err := h.addOthers(ctx, check); err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	if err := check.Err(); err != nil {
		return refuseSchedule(err)
	}
	return admission.Allowed("")
}

// changeTimes says whether a request changes when a schedule is due.
func (h *scheduleTimes) changeTimes(req admission.Request, o *harvesterv1.ScheduleVMBackup) (bool, error) {
	if req.Operation != admissionv1.Update {
		return true, nil
	}
	old := &harvesterv1.ScheduleVMBackup{}
	if err := h.decoder.DecodeRaw(req.OldObject, old); err != nil {
		return false, fmt.Errorf("decode the old schedule: %w", err)
	}
	return old.Spec.Cron != o.Spec.Cron || slices.ContainsFunc([]string{
		harvesterv1.AnnotationTimeZone, harvesterv1.AnnotationSkipCronCheck, harvesterv1.AnnotationJitter,
	}, func(name string) bool { return old.Annotations[name] != o.Annotations[name] }), nil
}

// addOthers reads the schedules of all namespaces.
func (h *scheduleTimes) addOthers(ctx context.Context, check *schedule.OffsetCheck) error {
	newList := func() *harvesterv1.ScheduleVMBackupList { return &harvesterv1.ScheduleVMBackupList{} }
	err := reconcile.ListPages(ctx, h.schedules, schedulePage, newList,
		func(page *harvesterv1.ScheduleVMBackupList) error {
			for i := range page.Items {
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				check.Add(&page.Items[i])
			}
			return nil
		})
	if err != nil {
		return fmt.Errorf("list the ScheduleVMBackups: %w", err)
	}
	return nil
}

// refuseSchedule returns a refusal that says that the object is wrong, and not that the user may not write it.
func refuseSchedule(why error) admission.Response {
	response := admission.Denied("")
	response.Result = &metav1.Status{
		Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid,
		Message: reconcile.CutText(why.Error(), refusalBytes),
	}
	return response
}
