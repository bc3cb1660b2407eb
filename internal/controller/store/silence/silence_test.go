package silence

import (
	"errors"
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
	// The clock of the dead one is ahead, and that of the living one behind: neither matters.
	for name, ahead := range map[string]time.Duration{"dead": 5 * time.Hour, "alive": -5 * time.Hour} {
		heard := metav1.NewMicroTime(now.Add(ahead))
		objects = append(objects,
			&longhornv1.InstanceManager{ObjectMeta: meta1(name), Status: longhornv1.InstanceManagerStatus{
				CurrentState: longhornv1.ManagerRunning, HeartbeatTime: &heard,
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
	clock := testingclock.NewFakePassiveClock(now)
	r := &reconciler{
		Options: Options{Namespace: "varve", Clock: clock}, cached: c, seen: map[client.ObjectKey]heartbeat{},
	}
	key := func(name string) client.ObjectKey { return client.ObjectKey{Namespace: "varve", Name: name} }
	look := func(name string, want time.Duration) {
		t.Helper()
		result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: key(name)})
		if err != nil || result.RequeueAfter != want {
			t.Errorf("%s: the next look is after %s, want %s, %v", name, result.RequeueAfter, want, err)
		}
	}
	expect := func(name string, silent bool) {
		t.Helper()
		var manager longhornv1.InstanceManager
		var node longhornv1.Node
		var volume longhornv1.Volume
		err := errors.Join(c.Get(t.Context(), key(name), &manager), c.Get(t.Context(), key(name), &node),
			c.Get(t.Context(), key("v-"+name), &volume))
		if err != nil {
			t.Fatal(err)
		}
		ready := meta.FindStatusCondition(node.Status.Conditions, longhornv1.ConditionReady)
		isSilent := manager.Status.CurrentState == longhornv1.ManagerUnknown && ready.Status == metav1.ConditionUnknown &&
			volume.Status.Robustness == longhornv1.RobustnessUnknown && volume.Status.State == longhornv1.VolumeAttached
		isWell := manager.Status.CurrentState == longhornv1.ManagerRunning && ready.Status == metav1.ConditionTrue &&
			volume.Status.Robustness == longhornv1.RobustnessHealthy
		if silent != isSilent || silent == isWell {
			t.Errorf("%s: %+v, %+v, %+v", name, manager.Status, ready, volume.Status)
		}
	}
	beat := func(name string) {
		t.Helper()
		var manager longhornv1.InstanceManager
		err := c.Get(t.Context(), key(name), &manager)
		if err == nil {
			manager.Status.HeartbeatTime.Time = manager.Status.HeartbeatTime.Add(30 * time.Second)
			manager.Status.CurrentState = longhornv1.ManagerRunning
			err = c.Status().Update(t.Context(), &manager)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	const whole = longhornv1.ReportTimeout + time.Second
	look("dead", whole)
	look("alive", whole)
	clock.SetTime(now.Add(time.Minute))
	beat("alive")
	look("alive", whole)
	look("dead", whole-time.Minute)
	clock.SetTime(now.Add(longhornv1.ReportTimeout + time.Second))
	look("dead", 0)
	look("alive", time.Minute)
	expect("dead", true)
	expect("alive", false)

	// Another process knows nothing, and counts from its start. What is silent stays so until there is a report.
	r.seen = map[client.ObjectKey]heartbeat{}
	look("alive", whole)
	look("dead", 0)
	expect("dead", true)
	expect("alive", false)
	beat("dead")
	look("dead", whole)
}
