package backingimage

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/events"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
)

// imageEvent is an event on an image.
type imageEvent struct{ kind, reason, action, note string }

// listEvents returns what has happened to an image since it had an earlier status. Stores say what they find out about
// copies that were ready.
func (in *input) listEvents(before, after *longhornv1.BackingImageStatus) (all []imageEvent) {
	isReady := func(s *longhornv1.BackingImageStatus) bool {
		return meta.IsStatusConditionTrue(s.Conditions, longhornv1.ConditionReady)
	}
	if after.FirstCopyAttempts > before.FirstCopyAttempts {
		all = append(all, imageEvent{
			corev1.EventTypeWarning, longhornv1.ReasonFirstCopyFailed, "MakeFirstCopy", after.FirstCopyMessage,
		})
	}
	for _, disk := range slices.Sorted(maps.Keys(after.DiskFileStatusMap)) {
		c, earlier := after.DiskFileStatusMap[disk], before.DiskFileStatusMap[disk]
		if before.V2FirstCopyStatus == longhornv1.StateReady && c.State == longhornv1.StateFailed &&
			(earlier == nil || earlier.State != longhornv1.StateFailed) {
			all = append(all, imageEvent{
				corev1.EventTypeWarning, longhornv1.ReasonCopyFailed, "Copy", in.describeDisk(disk) + ": " + c.Message,
			})
		}
	}
	if isReady(after) && !isReady(before) {
		note := meta.FindStatusCondition(after.Conditions, longhornv1.ConditionReady).Message
		all = append(all, imageEvent{corev1.EventTypeNormal, longhornv1.ReasonImageReady, "Copy", note})
	}
	return all
}

// recordEvents records what has happened to an image.
func recordEvents(recorder events.EventRecorder, image *longhornv1.BackingImage, all []imageEvent) {
	for _, e := range all {
		recorder.Eventf(image, nil, e.kind, e.reason, e.action, "%s", e.note)
	}
}
