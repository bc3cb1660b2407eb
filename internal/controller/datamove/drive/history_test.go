//go:build controlplane

package drive

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/test/controlplane"
)

// history follows every change of DataUploads, DataDownloads and mover pods, those of each kind in the API server's order.
type history struct {
	mu sync.Mutex
	// drivers has who drives each object that runs, and nodes where each pod is that exists.
	drivers, nodes map[string]string
	// mostDriven and mostPods are the most that one node had at once, and mostRunning is the most that ran at once.
	mostDriven, mostPods, mostRunning int
	// taken has the objects in the order in which they were taken.
	taken []string
}

// follow begins a history. It has everything from now on.
func (w *world) follow() *history {
	w.t.Helper()
	c := cluster.WatchingClient(w.t, controlplane.Admin)
	h := &history{drivers: map[string]string{}, nodes: map[string]string{}}
	for list, namespace := range map[client.ObjectList]string{&velerov2.DataUploadList{}: w.ns, &velerov2.DataDownloadList{}: w.ns, &corev1.PodList{}: w.varve} {
		changes, err := c.Watch(context.WithoutCancel(w.t.Context()), list, client.InNamespace(namespace))
		if err != nil {
			w.t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			for e := range changes.ResultChan() {
				h.note(e)
			}
		}()
		w.t.Cleanup(func() { changes.Stop(); <-done })
	}
	return h
}

func (h *history) note(e watch.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch o := e.Object.(type) {
	case *velerov2.DataUpload:
		h.noteObject(e.Type, o)
	case *velerov2.DataDownload:
		h.noteObject(e.Type, o)
	case *corev1.Pod:
		if e.Type == watch.Deleted {
			delete(h.nodes, o.Name)
			return
		}
		h.nodes[o.Name] = stateOfPod(o).Pinned
		h.mostPods = max(h.mostPods, most(h.nodes))
	}
}

// noteObject notes who drives an object. The lock is held.
func (h *history) noteObject(change watch.EventType, o client.Object) {
	v, err := viewOf(o)
	if err != nil || change == watch.Deleted || !isRunning(&v) {
		delete(h.drivers, v.Name)
		return
	}
	if !slices.Contains(h.taken, v.Name) {
		h.taken = append(h.taken, v.Name)
	}
	h.drivers[v.Name] = v.Driver
	h.mostDriven, h.mostRunning = max(h.mostDriven, most(h.drivers)), max(h.mostRunning, len(h.drivers))
}

// end waits until so many objects have been taken and nothing runs any more.
func (h *history) end(t *testing.T, taken int) {
	t.Helper()
	controlplane.Eventually(t, func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		if len(h.taken) != taken || len(h.drivers) > 0 || len(h.nodes) > 0 {
			return fmt.Errorf("%d of %d were taken, %v are driven, and there are the pods %v", len(h.taken), taken, h.drivers, h.nodes)
		}
		return nil
	})
}

// most returns how often the most frequent value is there.
func most(values map[string]string) int {
	count, highest := map[string]int{}, 0
	for _, v := range values {
		count[v]++
		highest = max(highest, count[v])
	}
	return highest
}
