package backingimage

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
)

// Clocks of nodes may be wrong by hours: only a report that differs counts as one from after the deletion.
func TestDeletions_compareReportsAndNotClocks(t *testing.T) {
	t.Parallel()
	var managers []longhornv1.InstanceManager
	beat := func(node int, at time.Duration) {
		managers[node].Status.HeartbeatTime = ptr.To(metav1.NewMicroTime(now.Add(at)))
	}
	for _, name := range []string{"ahead", "behind", "never"} {
		managers = append(managers, longhornv1.InstanceManager{ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: types.UID(name),
		}})
	}
	beat(0, 5*time.Hour)
	beat(1, -5*time.Hour)
	image := &longhornv1.BackingImage{ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: "image", UID: "1"}}
	var d deletions
	expect := func(what string, ahead, behind, never bool) {
		t.Helper()
		want := map[string]bool{"ahead": ahead, "behind": behind, "never": never}
		if diff := cmp.Diff(want, d.reportedSince(image, managers)); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
	}
	expect("at first", false, false, false)
	beat(1, -5*time.Hour+time.Second)
	expect("a report from a clock that is behind", false, true, false)
	beat(2, -5*time.Hour)
	managers[0].UID = "made anew"
	expect("the first report of all", true, true, true)
	image.UID = "2"
	expect("another image of that name", false, false, false)
	beat(0, 5*time.Hour+time.Second)
	expect("a report", true, false, false)
	d.forget(client.ObjectKeyFromObject(image))
	expect("after it is forgotten", false, false, false)
}
