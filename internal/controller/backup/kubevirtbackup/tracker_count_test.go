package kubevirtbackup

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/test/gen"
)

// The claim with the overlays has room for 16 bitmaps of each disk. The 17th tracker of a machine is warned of.
func TestTrackers_moreThanThereIsRoomForAreWarnedOf(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	if err := backupv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	cached := fake.NewClientBuilder().WithScheme(scheme).
		WithIndex(&backupv1.VirtualMachineBackupTracker{}, trackersByMachine, func(o client.Object) []string {
			return []string{o.(*backupv1.VirtualMachineBackupTracker).Spec.Source.Name}
		}).Build()
	recorder := events.NewFakeRecorder(100)
	r := &trackerCounter{access{cached: cached, live: cached, events: recorder}}
	create := func(name, machine string) {
		t.Helper()
		tracker := &backupv1.VirtualMachineBackupTracker{ObjectMeta: gen.Meta("ns", name), Spec: backupv1.VirtualMachineBackupTrackerSpec{Source: corev1.TypedLocalObjectReference{Kind: "VirtualMachine", Name: machine}}}
		if err := cached.Create(t.Context(), tracker); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(tracker)}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 16 {
		create(fmt.Sprintf("t%d", i), "vm")
		create(fmt.Sprintf("other%d", i), "other")
	}
	if n := len(recorder.Events); n > 0 {
		t.Fatalf("%d events, %s", n, <-recorder.Events)
	}
	create("one-more", "vm")
	if len(recorder.Events) != 1 {
		t.Fatalf("%d events of the 17th tracker", len(recorder.Events))
	}
	if text := <-recorder.Events; !strings.HasPrefix(text, "Warning "+EventTooManyTrackers) || !strings.Contains(text, "VirtualMachine vm has 17 trackers") {
		t.Error(text)
	}
}
