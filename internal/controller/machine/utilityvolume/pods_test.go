package utilityvolume

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/controller/machine/holdpod"
	"github.com/varvebackup/varve/internal/layout"
)

// cached plays a cache with these pods.
type cached struct {
	client.Client
	pods []*corev1.Pod
}

func (c cached) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	for _, pod := range c.pods {
		list.(*corev1.PodList).Items = append(list.(*corev1.PodList).Items, *pod)
	}
	return nil
}

// answers plays an API server that has this pod, or fails.
type answers struct {
	client.Reader
	pod *corev1.Pod
	err error
}

func (a answers) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	switch {
	case a.err != nil:
		return a.err
	case a.pod == nil:
		return apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, key.Name)
	}
	a.pod.DeepCopyInto(o.(*corev1.Pod))
	return nil
}

// A cache that is behind may show the end of the previous pod, or no pod at all. That must not make a backup fail.
func TestPods_anEndIsBelievedOfTheAPIServerAlone(t *testing.T) {
	t.Parallel()
	instance := guest(true, mounted)
	pod := func(uid types.UID, phase corev1.PodPhase) *corev1.Pod {
		p := attachmentPod(instance, instance.Spec.UtilityVolumes[0], "n1", holdpod.Image{Name: "varve"})
		p.UID, p.Status.Phase = uid, phase
		return p
	}
	foreign := pod("p", corev1.PodRunning)
	foreign.OwnerReferences = nil
	before, present := pod("before", corev1.PodFailed), pod("p", corev1.PodRunning)
	terminating := pod("p", corev1.PodRunning)
	terminating.DeletionTimestamp = &metav1.Time{Time: now}
	for name, c := range map[string]struct {
		cache   []*corev1.Pod
		server  answers
		want    kubevirtv1.VolumePhase
		failure bool
	}{
		"the cache has it":                           {cache: []*corev1.Pod{present}, server: answers{err: errors.New("nobody needs to ask")}, want: mounted},
		"the cache has its end":                      {cache: []*corev1.Pod{terminating}, server: answers{err: errors.New("nobody needs to ask")}, want: removing},
		"the cache has the end of the one before":    {cache: []*corev1.Pod{before}, server: answers{pod: present}, want: mounted},
		"the cache has none":                         {server: answers{pod: present}, want: mounted},
		"it is gone":                                 {server: answers{}, want: removing},
		"it is gone, and the cache has one before":   {cache: []*corev1.Pod{before}, server: answers{}, want: removing},
		"it was replaced":                            {cache: []*corev1.Pod{before}, server: answers{pod: pod("after", corev1.PodRunning)}, want: removing},
		"somebody else's pod has its name":           {cache: []*corev1.Pod{before}, server: answers{pod: foreign}, want: removing},
		"the API server does not answer":             {cache: []*corev1.Pod{before}, server: answers{err: errors.New("connection refused")}, failure: true},
		"no pod, and the API server does not answer": {server: answers{err: errors.New("connection refused")}, failure: true},
	} {
		r := &reconciler{cached: cached{pods: c.cache}, live: c.server}
		pods, err := r.findAttachmentPods(t.Context(), instance)
		if (err != nil) != c.failure {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil {
			continue
		}
		d := decide(input{Now: now, Instance: instance, Pods: pods})
		if got := d.Status[len(d.Status)-1].Phase; got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// deletes is a client that deletes pods.
type deletes struct {
	client.Client
	deleted *[]string
}

func (d deletes) Delete(_ context.Context, o client.Object, _ ...client.DeleteOption) error {
	*d.deleted = append(*d.deleted, o.GetName())
	return nil
}

// has plays an API server that has the instance in this version, or fails.
type has struct {
	client.Reader
	version string
	err     error
}

func (h has) Get(_ context.Context, _ client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	o.SetResourceVersion(h.version)
	return h.err
}

// In a cache that is behind, the instance may not name a pod's volume yet, or may say that the previous pod has to
// go. No pod may be deleted because of that.
func TestApply_noPodGoesByAnInstanceThatIsBehind(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		server  has
		deleted bool
		failure bool
	}{
		"the instance is as it was read": {has{version: "1"}, true, false},
		"the cache is behind":            {has{version: "2"}, false, true},
		"the instance is gone":           {has{err: apierrors.NewNotFound(schema.GroupResource{}, "vm")}, false, false},
		"the API server does not answer": {has{err: errors.New("connection refused")}, false, true},
	} {
		instance := guest(true, mounted)
		pod := attachmentPod(instance, instance.Spec.UtilityVolumes[0], "n1", holdpod.Image{Name: "varve"})
		instance.Spec.UtilityVolumes, instance.Status.VolumeStatus, instance.ResourceVersion = nil, nil, "1"
		d := decide(input{Now: now, Instance: instance, Pods: map[string]*corev1.Pod{pod.Labels[layout.LabelAttachment]: pod}})
		var deleted []string
		r := &reconciler{cached: deletes{deleted: &deleted}, live: c.server, events: events.NewFakeRecorder(1)}
		if err := r.applyDecision(t.Context(), instance, d); (err != nil) != c.failure || (len(deleted) > 0) != c.deleted {
			t.Errorf("%s: deleted %v: %v", name, deleted, err)
		}
	}
}
