package virtualmachineinstance

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/runepoch"
)

// keepsRuns plays an API server that has the claim "root" with a run of the instance "i" and does not allow changes
// to it.
type keepsRuns struct {
	client.Client
	refusal error
	// changed says that somebody changed the instance after the reconciler read it. runs counts the changes of the claim.
	changed bool
	runs    int
	// written is the phase that was written. released says that the instance's finalizer was removed.
	written  kubevirtv1.Phase
	released bool
}

func (k *keepsRuns) Get(_ context.Context, _ client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	if vmi, ok := o.(*kubevirtv1.VirtualMachineInstance); ok {
		*vmi = *instanceIn(scheduled)
		if k.changed {
			vmi.ResourceVersion = "changed"
		}
		return nil
	}
	o.SetUID("c")
	return runepoch.Epoch{Claim: "c"}.Begin("before").Begin(runepoch.InstanceRun("i")).Write(o.(*corev1.PersistentVolumeClaim))
}

func (k *keepsRuns) Patch(_ context.Context, o client.Object, _ client.Patch, _ ...client.PatchOption) error {
	if _, ok := o.(*corev1.PersistentVolumeClaim); ok {
		k.runs++
		return k.refusal
	}
	k.released = len(o.GetFinalizers()) == 0
	return nil
}

func (k *keepsRuns) Status() client.SubResourceWriter { return keepsStatus{of: k} }

type keepsStatus struct {
	client.SubResourceWriter
	of *keepsRuns
}

func (s keepsStatus) Patch(_ context.Context, o client.Object, _ client.Patch, _ ...client.SubResourcePatchOption) error {
	s.of.written = o.(*kubevirtv1.VirtualMachineInstance).Status.Phase
	return nil
}

func (k *keepsRuns) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	if pods, ok := list.(*corev1.PodList); ok {
		job := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "restore", UID: "restore"}, Status: corev1.PodStatus{Phase: corev1.PodSucceeded}}
		job.Spec.Volumes = []corev1.Volume{{Name: "disk", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "root"},
		}}}
		pods.Items = []corev1.Pod{job}
	}
	return nil
}

// onRoot returns the instance with the claim "root".
func onRoot(instance *kubevirtv1.VirtualMachineInstance) *kubevirtv1.VirtualMachineInstance {
	instance.Spec.Volumes = []kubevirtv1.Volume{{Name: "root", PersistentVolumeClaim: &kubevirtv1.PersistentVolumeClaimVolumeSource{
		PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: "root"},
	}}}
	return instance
}

// A reconciler whose cache is behind sees an instance that has not started, while its guest runs or has run. A job that
// has ended by now may have written beside that guest. Nothing about the runs may follow from such a view.
func TestRuns_aCacheThatIsBehindChangesNothing(t *testing.T) {
	t.Parallel()
	for name, act := range map[string]func(*reconciler, *kubevirtv1.VirtualMachineInstance) error{
		"a claim is taken": func(r *reconciler, i *kubevirtv1.VirtualMachineInstance) error {
			pods, err := r.livePods(t.Context(), i.Namespace)
			if err != nil {
				return err
			}
			_, _, err = r.takeClaims(t.Context(), i, pods)
			return err
		},
		"a claim is confirmed": func(r *reconciler, i *kubevirtv1.VirtualMachineInstance) error {
			i.Annotations = map[string]string{layout.AnnotationTracking: "true"}
			return r.confirmClaims(t.Context(), i)
		},
		"a run is given back": func(r *reconciler, i *kubevirtv1.VirtualMachineInstance) error { return r.giveBack(t.Context(), i) },
	} {
		for _, changed := range []bool{false, true} {
			server := &keepsRuns{changed: changed}
			r := &reconciler{cached: server, live: server, events: events.NewFakeRecorder(4)}
			instance := onRoot(instanceIn(scheduled))
			err := act(r, instance)
			if apierrors.IsConflict(err) != changed || (server.runs == 0) != changed || !changed && err != nil {
				t.Errorf("%s: changed %t, %d records written: %v", name, changed, server.runs, err)
			}
		}
	}
}

// A run that cannot be taken back costs a full backup, but neither hides the end nor keeps the instance.
func TestGiveBack_doesNotHoldTheEnd(t *testing.T) {
	t.Parallel()
	claims := schema.GroupResource{Resource: "persistentvolumeclaims"}
	for name, c := range map[string]struct {
		refusal error
		again   bool // it is retried before anything else
	}{
		"a policy denies it": {apierrors.NewForbidden(claims, "root", errors.New("denied by a policy")), false},
		"a webhook is down":  {apierrors.NewInternalError(errors.New("failed calling webhook")), false},
		"a lost race":        {apierrors.NewConflict(claims, "root", errors.New("somebody else wrote")), true},
		"a busy API server":  {apierrors.NewTooManyRequests("later", 1), true},
		"no answer":          {errors.New("connection refused"), true},
	} {
		server, recorder := &keepsRuns{refusal: c.refusal}, events.NewFakeRecorder(4)
		r := &reconciler{cached: server, live: server, events: recorder}
		instance := onRoot(instanceIn(scheduled))
		instance.Finalizers = []string{layout.FinalizerInstance}
		d := decision{GiveBack: true, Status: *instance.Status.DeepCopy()}
		d.Status.Phase = kubevirtv1.PhaseSucceeded
		err := r.writeDecision(t.Context(), instance.DeepCopy(), d)
		if (err != nil) != c.again || (server.written == kubevirtv1.PhaseSucceeded) == c.again {
			t.Errorf("%s: the end, as %q: %v", name, server.written, err)
		}
		instance.DeletionTimestamp = &metav1.Time{Time: now}
		if err := r.releaseInstance(t.Context(), instance); (err != nil) != c.again || server.released == c.again {
			t.Errorf("%s: released %t: %v", name, server.released, err)
		}
		for !c.again && err == nil && len(recorder.Events) > 0 {
			if e := <-recorder.Events; !strings.Contains(e, ReasonClaimRecordRefused) && !strings.Contains(e, "Stopped") {
				t.Errorf("%s: %s", name, e)
			}
		}
	}
}
