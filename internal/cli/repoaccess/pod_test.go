package repoaccess

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/repository/storage/blobhttp"
)

// A pod that is gone does not come back: another one would not have what the command has begun. One that does not run yet is waited for.
func TestDial_knowsAPodThatIsGone(t *testing.T) {
	t.Parallel()
	scheme, err := cluster.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		edit func(*corev1.Pod)
		want error
		text string
	}{
		"ended": {func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodFailed
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "OOMKilled"}}}}
		}, errclass.Expired, "OOMKilled"},
		"ending": {func(p *corev1.Pod) {
			p.DeletionTimestamp, p.Finalizers = ptr.To(metav1.NewTime(time.Unix(1, 0))), []string{"batch.kubernetes.io/job-tracking"}
		}, errclass.Expired, "has ended"},
		"gone":    {func(p *corev1.Pod) { p.Name = "other" }, errclass.Expired, "is gone"},
		"pending": {func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }, errclass.Transient, "Pending"},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: layout.Namespace, Name: "pod"}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
		c.edit(pod)
		kube := &cluster.Client{WithWatch: fake.NewClientBuilder().WithScheme(scheme).WithObjects(pod).Build()}
		p := &podStorage{cluster: kube, pod: "pod", forward: kube.Forward(layout.Namespace, "pod", 1)}
		if _, err := p.dial(t.Context()); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", name, err)
		}
		p.forward.Close()
	}
}

// When the pod is gone, what uses its storage is ended: it would fail for ever.
func TestKeepAlive_tellsThatThePodIsGone(t *testing.T) {
	t.Parallel()
	scheme, err := cluster.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	kube := &cluster.Client{WithWatch: fake.NewClientBuilder().WithScheme(scheme).Build()}
	within, gone := context.WithCancelCause(t.Context())
	p := &podStorage{cluster: kube, pod: "pod", forward: kube.Forward(layout.Namespace, "pod", 1), gone: gone}
	defer p.forward.Close()
	p.blobs = blobhttp.NewClient("shelf", p.dial)
	p.keepAlive(t.Context(), time.Hour, time.Minute)
	if cause := context.Cause(within); !errors.Is(cause, errclass.Expired) || !strings.Contains(cause.Error(), "run the command again") {
		t.Error(cause)
	}
}
