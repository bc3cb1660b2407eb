package metric

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
)

func TestImages_areReportedWithTheirCopies(t *testing.T) {
	t.Parallel()
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "varve", Name: name, CreationTimestamp: *at(3)}
	}
	image := func(name string, first longhornv1.BackingImageState, ready metav1.Condition,
		states ...longhornv1.BackingImageState,
	) *longhornv1.BackingImage {
		i := &longhornv1.BackingImage{ObjectMeta: meta(name)}
		i.Spec.SourceType, i.Spec.MinNumberOfCopies = longhornv1.SourceDownload, 2
		i.Status.V2FirstCopyStatus, i.Status.Conditions = first, []metav1.Condition{ready}
		i.Status.DiskFileStatusMap = map[string]*longhornv1.BackingImageDiskFileStatus{}
		for n, state := range states {
			i.Status.DiskFileStatusMap[string(rune('a'+n))] = &longhornv1.BackingImageDiskFileStatus{State: state}
		}
		return i
	}
	elsewhere := &longhornv1.BackingImage{ObjectMeta: metav1.ObjectMeta{Namespace: "longhorn-system", Name: "theirs"}}
	failing := image("new", longhornv1.StateFailed, metav1.Condition{
		Type: longhornv1.ConditionReady, Status: metav1.ConditionFalse, Reason: longhornv1.ReasonFirstCopyFailed,
	})
	failing.Status.FirstCopyAttempts = 4
	manager := func(name, state string) *longhornv1.InstanceManager {
		m := &longhornv1.InstanceManager{ObjectMeta: meta(name)}
		m.Status.CurrentState = state
		return m
	}
	c := readerOf(t, elsewhere, failing,
		image("debian", longhornv1.StateReady, metav1.Condition{
			Type: longhornv1.ConditionReady, Status: metav1.ConditionTrue, Reason: longhornv1.ReasonImageReady,
		}, longhornv1.StateReady, longhornv1.StateReady, longhornv1.StateUnknown, longhornv1.StateInProgress),
		&longhornv1.Node{ObjectMeta: meta("alive")}, manager("alive", longhornv1.ManagerRunning),
		&longhornv1.Node{ObjectMeta: meta("silent")}, manager("silent", longhornv1.ManagerUnknown),
		&longhornv1.Node{ObjectMeta: meta("never")}, manager("gone-for-good", longhornv1.ManagerUnknown))
	s := begin(t, c)
	mustEqual(t, append(series(t, s, "varve_image_"), series(t, s, "varve_store_")...), nil)

	s.ServeImages("varve")
	mustEqual(t, series(t, s, "varve_image_"), []string{
		"varve_image_info{image=debian,ready=True,reason=Ready,source_type=download} 1",
		"varve_image_copies{image=debian,state=pending} 0",
		"varve_image_copies{image=debian,state=in-progress} 1",
		"varve_image_copies{image=debian,state=ready} 2",
		"varve_image_copies{image=debian,state=failed} 0",
		"varve_image_copies{image=debian,state=unknown} 1",
		"varve_image_wanted_copies{image=debian} 2",
		"varve_image_first_copy_failures{image=debian} 0",

		"varve_image_info{image=new,ready=False,reason=FirstCopyFailed,source_type=download} 1",
		"varve_image_copies{image=new,state=pending} 0",
		"varve_image_copies{image=new,state=in-progress} 0",
		"varve_image_copies{image=new,state=ready} 0",
		"varve_image_copies{image=new,state=failed} 0",
		"varve_image_copies{image=new,state=unknown} 0",
		"varve_image_wanted_copies{image=new} 2",
		"varve_image_first_copy_failures{image=new} 4",
		"varve_image_first_copy_awaited_since_timestamp_seconds{image=new} 3",
	})
	mustEqual(t, series(t, s, "varve_store_"), []string{
		"varve_store_reporting{node=alive} 1", "varve_store_reporting{node=silent} 0", "varve_store_reporting{node=never} 0",
	})
}
