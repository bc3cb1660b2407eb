package virtualmachineinstance

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/stateclaim"
)

// movingInput is fullInput with a claim that the overlays move to.
func movingInput() podInput {
	in := fullInput()
	in.Claims[layout.SecondStatePVC("vm")] = &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: layout.SecondStatePVC("vm"), UID: "large", Annotations: map[string]string{layout.AnnotationMovesFrom: "small"}},
	}
	return in
}

func TestLauncherPod_mountsBothClaimsWhileOverlaysMove(t *testing.T) {
	t.Parallel()
	mounts := func(in podInput) map[string]string {
		pod := launcherPod(in)
		paths := map[string]string{}
		for _, v := range pod.Spec.Volumes {
			for _, m := range pod.Spec.Containers[0].VolumeMounts {
				if m.Name == v.Name && v.PersistentVolumeClaim != nil {
					paths[m.MountPath] = v.PersistentVolumeClaim.ClaimName
				}
			}
		}
		return paths
	}
	got := mounts(movingInput())
	if got[layout.StateDir] != layout.SecondStatePVC("vm") || got[layout.PreviousStateDir] != layout.StatePVC("vm") {
		t.Errorf("mounts %v", got)
	}
	// They have moved, and the old claim is on its way out.
	in := movingInput()
	in.Claims[layout.StatePVC("vm")].DeletionTimestamp = &metav1.Time{}
	got = mounts(in)
	if _, both := got[layout.PreviousStateDir]; both || got[layout.StateDir] != layout.SecondStatePVC("vm") {
		t.Errorf("mounts %v", got)
	}
}

func TestWhyNoStateClaim_saysWhatIsBeingTried(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 29, 3, 0, 0, 0, time.UTC)
	small := func(in podInput) { in.Claims[layout.StatePVC("vm")].Status.Capacity = capacity("1Mi") }
	growth := func(in podInput, g stateclaim.Growth) {
		annotations, err := g.Write(in.Instance.Annotations)
		if err != nil {
			t.Fatal(err)
		}
		in.Instance.Annotations = annotations
	}
	for name, c := range map[string]struct {
		edit   func(in podInput)
		reason string
		says   []string
	}{
		"large enough": {edit: func(in podInput) { in.Claims[layout.StatePVC("vm")].Status.Capacity = capacity("1Gi") }},
		"none":         {func(in podInput) { delete(in.Claims, layout.StatePVC("vm")) }, ReasonStateClaim, []string{"is being created"}},
		"too small":    {small, ReasonStateClaim, []string{"too small"}},
		"expanding": {func(in podInput) {
			small(in)
			in.Claims[layout.StatePVC("vm")].Status.Conditions = []corev1.PersistentVolumeClaimCondition{{
				Type: corev1.PersistentVolumeClaimControllerResizeError, Status: corev1.ConditionTrue, Message: "the pool is full",
			}}
			growth(in, stateclaim.Begin(stateclaim.StepExpand, now, ""))
		}, ReasonStateClaimExpanding, []string{"expanded", "2026-11-29T03:03:00Z", "the pool is full"}},
		"moving": {func(in podInput) {
			small(in)
			growth(in, stateclaim.Begin(stateclaim.StepMove, now, "exceeded quota"))
		}, ReasonStateClaimMoving, []string{"larger", "2026-11-29T03:03:00Z", "exceeded quota"}},
		"expanded up to its file system": {edit: func(in podInput) {
			small(in)
			c := in.Claims[layout.StatePVC("vm")]
			c.Spec.Resources.Requests = capacity("1Gi")
			c.Status.Conditions = []corev1.PersistentVolumeClaimCondition{{Type: corev1.PersistentVolumeClaimFileSystemResizePending, Status: corev1.ConditionTrue}}
		}},
		"a larger one is there": {edit: func(in podInput) {
			small(in)
			in.Claims[layout.SecondStatePVC("vm")] = movingInput().Claims[layout.SecondStatePVC("vm")]
			in.Claims[layout.SecondStatePVC("vm")].Status.Capacity = capacity("1Gi")
		}},
	} {
		in := fullInput()
		c.edit(in)
		got := whyNoStateClaim(in.Instance, in.Claims)
		if got == nil {
			got = &obstacle{}
		}
		if got.Reason != c.reason {
			t.Errorf("%s: %+v, want %q", name, got, c.reason)
		}
		for _, words := range c.says {
			if !strings.Contains(got.Message, words) {
				t.Errorf("%s: %q does not say %q", name, got.Message, words)
			}
		}
	}
}

func TestUnboundSuccessor_keepsThePodBackOnlyForAProvisioner(t *testing.T) {
	t.Parallel()
	in := movingInput()
	for _, c := range []struct {
		unbound []unboundClaim
		want    bool
	}{
		{nil, false},
		{[]unboundClaim{{Name: layout.SecondStatePVC("vm"), Immediate: true}}, true},
		{[]unboundClaim{{Name: layout.SecondStatePVC("vm")}}, false}, // its volume is made for the pod
		{[]unboundClaim{{Name: layout.StatePVC("vm"), Immediate: true}}, false},
	} {
		got := unboundSuccessor(in.Instance, in.Claims, c.unbound)
		if (got != nil) != c.want || c.want && got.Reason != ReasonStateClaimMoving {
			t.Errorf("%+v: %+v", c.unbound, got)
		}
	}
}

func capacity(size string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
}
