//go:build soak

package soak

import (
	"context"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/lab"
)

// moverHistory has the mover pods that a watch showed.
type moverHistory struct {
	mu sync.Mutex
	// pods has their UIDs, by the label and name of the object that they worked for, and restarts how often a container
	// of a pod was started again.
	pods     map[string]map[types.UID]bool
	restarts map[types.UID]int32
}

func (s *soak) followMovers() *moverHistory {
	s.t.Helper()
	scheme, err := lab.Scheme()
	s.must(err)
	c, err := client.NewWithWatch(s.Config, client.Options{Scheme: scheme})
	s.must(err)
	ctx := context.WithoutCancel(s.t.Context())
	changes, err := c.Watch(ctx, &corev1.PodList{}, client.InNamespace(layout.Namespace))
	s.must(err)
	h := &moverHistory{pods: map[string]map[types.UID]bool{}, restarts: map[types.UID]int32{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e := range changes.ResultChan() {
			if pod, ok := e.Object.(*corev1.Pod); ok {
				h.note(pod)
			}
		}
	}()
	s.t.Cleanup(func() { changes.Stop(); <-done })
	return h
}

func (h *moverHistory) note(pod *corev1.Pod) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, label := range []string{datamove.LabelPodUpload, datamove.LabelPodDownload} {
		object, ok := pod.Labels[label]
		if !ok {
			continue
		}
		key := label + "=" + object
		if h.pods[key] == nil {
			h.pods[key] = map[types.UID]bool{}
		}
		h.pods[key][pod.UID] = true
		for i := range pod.Status.ContainerStatuses {
			h.restarts[pod.UID] = max(h.restarts[pod.UID], pod.Status.ContainerStatuses[i].RestartCount)
		}
	}
}

// check checks that as many objects had a mover as there were, each one pod, and that movers were started again at most
// as often as they were killed.
func (h *moverHistory) check(t *testing.T, objects, kills int) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	for object, pods := range h.pods {
		if len(pods) > 1 {
			t.Errorf("%s had %d mover pods", object, len(pods))
		}
	}
	restarts := 0
	for _, n := range h.restarts {
		restarts += int(n)
	}
	if len(h.pods) != objects || restarts > kills {
		t.Errorf("%d objects had movers, want %d; they were started again %d times, and %d were killed",
			len(h.pods), objects, restarts, kills)
	}
}
