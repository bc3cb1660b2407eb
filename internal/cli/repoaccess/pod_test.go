package repoaccess

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/failure"
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
		"gone":      {func(p *corev1.Pod) { p.Name = "other" }, errclass.Expired, "is gone"},
		"no access": {nil, errclass.Denied, "the token has expired"},
		"pending":   {func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }, errclass.Transient, "Pending"},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: layout.Namespace, Name: "pod"}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
		if c.edit != nil {
			c.edit(pod)
		}
		kube := &cluster.Client{WithWatch: interceptor.NewClient(fake.NewClientBuilder().WithScheme(scheme).WithObjects(pod).Build(), interceptor.Funcs{
			Get: func(ctx context.Context, cl client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
				if c.edit == nil {
					return apierrors.NewUnauthorized("the token has expired")
				}
				return cl.Get(ctx, key, o, options...)
			},
		})}
		p := &podStorage{cluster: kube, pod: "pod", forward: kube.Forward(layout.Namespace, "pod", 1)}
		_, err := p.dial(t.Context())
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", name, err)
		}
		if c.edit == nil && !strings.Contains(failure.Hint(Explain(err)), "log in again") {
			t.Errorf("%s: hint %q", name, failure.Hint(Explain(err)))
		}
		p.forward.Close()
	}
}

// When the pod is gone, what uses its storage is ended: it would fail for ever. So it is when the pod must have ended by itself, and the cluster does
// not say so, because the user's time in it is over.
func TestKeepAlive_tellsThatThePodIsGone(t *testing.T) {
	t.Parallel()
	scheme, err := cluster.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		answer error
		says   string
	}{
		"gone":      {apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "pod"), "is gone"},
		"no access": {apierrors.NewUnauthorized("the token has expired"), "could not be reached"},
	} {
		kube := &cluster.Client{WithWatch: interceptor.NewClient(fake.NewClientBuilder().WithScheme(scheme).Build(), interceptor.Funcs{
			Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
				return c.answer
			},
		})}
		within, gone := context.WithCancelCause(t.Context())
		p := &podStorage{cluster: kube, pod: "pod", forward: kube.Forward(layout.Namespace, "pod", 1), gone: gone}
		p.blobs = blobhttp.NewClient("shelf", p.dial)
		p.keepAlive(t.Context(), time.Millisecond, time.Minute, 20*time.Millisecond)
		p.forward.Close()
		cause := context.Cause(within)
		if !errors.Is(cause, errclass.Expired) || !strings.HasPrefix(cause.Error(), "the pod ") || !strings.Contains(cause.Error(), c.says) {
			t.Errorf("%s: %v", name, cause)
		}
		told := Explain(whyEnded(t.Context(), within, fmt.Errorf("restore: %w", context.Canceled)))
		if failure.Code(told) != errclass.ExitRefused || failure.Hint(told) != "" || !strings.Contains(told.Error(), "run the command again") || !strings.Contains(told.Error(), "restore") {
			t.Errorf("%s: exit code %d, hint %q: %v", name, failure.Code(told), failure.Hint(told), told)
		}
	}
}

// Something that was cancelled is not done, whoever did it, and only the user interrupts a command.
func TestWhyEnded_keepsTheError(t *testing.T) {
	t.Parallel()
	cancelled := fmt.Errorf("read: %w", context.Canceled)
	damaged := errors.Join(cancelled, errclass.Errorf(errclass.Corrupt, "the index is damaged"))
	locked := errors.Join(cancelled, errclass.Errorf(errclass.Conflict, "the lock is lost"))
	gone, end := context.WithCancelCause(t.Context())
	end(errclass.Errorf(errclass.Expired, "the pod is gone"))
	for name, c := range map[string]struct {
		ctx, within context.Context
		err         error
		code        int
		says        []string
	}{
		"nothing ended":                  {t.Context(), t.Context(), cancelled, errclass.ExitFailure, []string{"read: context canceled"}},
		"damage":                         {t.Context(), t.Context(), damaged, errclass.ExitFailure, []string{"the index is damaged"}},
		"a conflict":                     {t.Context(), t.Context(), locked, errclass.ExitRefused, []string{"the lock is lost"}},
		"the pod is gone":                {t.Context(), gone, cancelled, errclass.ExitRefused, []string{"the pod is gone", "read: context canceled"}},
		"the pod is gone after the work": {t.Context(), gone, nil, errclass.ExitOK, nil},
		"the pod is gone, another error": {t.Context(), gone, errclass.Errorf(errclass.NotFound, "no disk"), errclass.ExitNotFound, []string{"no disk"}},
		"the user interrupts":            {gone, gone, cancelled, errclass.ExitInterrupted, []string{"read: context canceled"}},
	} {
		err := whyEnded(c.ctx, c.within, c.err)
		if (err == nil) != (c.err == nil) || failure.Code(err) != c.code {
			t.Errorf("%s: exit code %d: %v", name, failure.Code(err), err)
		}
		for _, text := range c.says {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if hint := failure.Hint(Explain(whyEnded(t.Context(), t.Context(), damaged))); !strings.Contains(hint, "varve repo check") {
		t.Errorf("damage: hint %q", hint)
	}
}
