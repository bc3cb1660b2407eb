package silence

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	testingclock "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
)

// A node whose store does not report looks like one that nobody knows anything about, and the others stay as they are.
func TestReconcile_marksWhatASilentStoreHas(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 30, 9, 0, 0, 0, time.UTC)
	meta1 := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "varve", Name: name} }
	var objects []client.Object
	for name, age := range map[string]time.Duration{"dead": 4 * time.Minute, "alive": time.Minute} {
		heard := metav1.NewMicroTime(now.Add(-age))
		objects = append(objects,
			&longhornv1.InstanceManager{ObjectMeta: meta1(name), Status: longhornv1.InstanceManagerStatus{
				CurrentState: "running", HeartbeatTime: &heard,
			}},
			&longhornv1.Node{ObjectMeta: meta1(name), Status: longhornv1.NodeStatus{Conditions: []metav1.Condition{{
				Type: longhornv1.ConditionReady, Status: metav1.ConditionTrue, Reason: longhornv1.ReasonDiskReady,
			}}}},
			&longhornv1.Volume{ObjectMeta: meta1("v-" + name), Status: longhornv1.VolumeStatus{
				State: longhornv1.VolumeAttached, Robustness: longhornv1.RobustnessHealthy,
			}},
			&longhornv1.Replica{ObjectMeta: meta1("v-" + name), Spec: longhornv1.ReplicaSpec{VolumeName: "v-" + name, NodeID: name}},
		)
	}
	scheme := runtime.NewScheme()
	if err := longhornv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(objects...).Build()
	r := &reconciler{Options: Options{Namespace: "varve", Clock: testingclock.NewFakePassiveClock(now)}, cached: c}
	for _, name := range []string{"dead", "alive"} {
		request := ctrl.Request{NamespacedName: client.ObjectKey{Namespace: "varve", Name: name}}
		result, err := r.Reconcile(t.Context(), request)
		if err != nil {
			t.Fatal(err)
		}
		if next := result.RequeueAfter; (name == "alive") != (next == 2*time.Minute+time.Second) {
			t.Errorf("%s: the next look is after %s", name, next)
		}
		var manager longhornv1.InstanceManager
		var node longhornv1.Node
		var volume longhornv1.Volume
		for key, o := range map[string]client.Object{name: &manager, "v-" + name: &volume} {
			if err := c.Get(t.Context(), client.ObjectKey{Namespace: "varve", Name: key}, o); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.Get(t.Context(), request.NamespacedName, &node); err != nil {
			t.Fatal(err)
		}
		ready := meta.FindStatusCondition(node.Status.Conditions, longhornv1.ConditionReady)
		silent := manager.Status.CurrentState == longhornv1.ManagerUnknown && ready.Status == metav1.ConditionUnknown &&
			volume.Status.Robustness == longhornv1.RobustnessUnknown && volume.Status.State == longhornv1.VolumeAttached
		well := manager.Status.CurrentState == "running" && ready.Status == metav1.ConditionTrue &&
			volume.Status.Robustness == longhornv1.RobustnessHealthy
		if name == "dead" && !silent || name == "alive" && !well {
			t.Errorf("%s: %+v, %+v, %+v", name, manager.Status, ready, volume.Status)
		}
	}
}
