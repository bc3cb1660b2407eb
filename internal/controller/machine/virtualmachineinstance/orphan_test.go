package virtualmachineinstance

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
)

// answers plays an API server that has an instance with this UID, or fails.
type answers struct {
	client.Reader
	uid types.UID
	err error
}

func (a answers) Get(_ context.Context, _ client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	o.SetUID(a.uid)
	return a.err
}

func TestInstanceExists_isNotDeniedByAnError(t *testing.T) {
	t.Parallel()
	kind := schema.GroupResource{Group: kubevirtv1.GroupVersion.Group, Resource: "virtualmachineinstances"}
	for name, c := range map[string]struct {
		answer  answers
		want    bool
		failure bool
	}{
		"there":               {answers{uid: "i"}, true, false},
		"another of its name": {answers{uid: "j"}, false, false},
		"not there":           {answers{err: apierrors.NewNotFound(kind, "vm")}, false, false},
		"forbidden":           {answers{err: apierrors.NewForbidden(kind, "vm", nil)}, false, true},
		"no answer":           {answers{err: errors.New("connection refused")}, false, true},
		"a timeout":           {answers{err: context.DeadlineExceeded}, false, true},
	} {
		r := &reconciler{live: c.answer}
		got, err := r.instanceExists(t.Context(), types.NamespacedName{Namespace: "ns", Name: "vm"}, "i")
		if got != c.want || (err != nil) != c.failure {
			t.Errorf("%s: %t, %v", name, got, err)
		}
	}
}

func TestPodOver_needsAnEndOrAKubeletThatKeepsSilent(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		want bool
		wait time.Duration
	}{
		"runs":                             {podIn(corev1.PodRunning), false, 0},
		"shuts down":                       {going(podIn(corev1.PodRunning), time.Hour, 60), false, 0},
		"has ended":                        {going(terminated(corev1.PodFailed, "", 1), 0, 60), true, 0},
		"was force-deleted just now":       {going(podIn(corev1.PodRunning), 10*time.Second, 0), false, 20 * time.Second},
		"was force-deleted on a dead node": {going(podIn(corev1.PodRunning), 30*time.Second, 0), true, 0},
		"never had a node":                 {going(unscheduledPod("none"), 0, 0), true, 0},
	} {
		if over, wait := podOver(c.pod, now); over != c.want || wait != c.wait {
			t.Errorf("%s: %t, look again in %s", name, over, wait)
		}
	}
}
