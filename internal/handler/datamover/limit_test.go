//go:build controlplane

package datamover

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/test/controlplane"
)

// meeting is a client that, while it is open, holds the write by which a handler takes an object until another handler is about to take
// one as well, or for a while if none is. Handlers that count without excluding each other have all counted by then.
type meeting struct {
	client.Client
	open    *atomic.Bool
	arrived *atomic.Int64
}

func (m meeting) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.PatchOption) error {
	data, err := p.Data(o)
	if err != nil {
		return err
	}
	if m.open.Load() && strings.Contains(string(data), "acceptedTimestamp") {
		m.arrived.Add(1)
		for deadline := time.Now().Add(leaseTime / 3); m.arrived.Load() < 2 && time.Now().Before(deadline); {
			time.Sleep(20 * time.Millisecond)
		}
	}
	return m.Client.Patch(ctx, o, p, opts...)
}

// Upstream's defect 8: agents that count and then take can pass the limit of the cluster together.
func TestClusterLimit_isNotPassedTogether(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "concurrency: {cluster: 1}")
	open, arrived := &atomic.Bool{}, &atomic.Int64{}
	w.wrap = func(c client.Client) client.Client { return meeting{c, open, arrived} }
	h := w.follow()
	nodes := []string{w.node(), w.node()}
	for _, node := range nodes {
		w.targetOn(node, map[string]string{annotationSelectedNode: node})
		w.handler(node)
	}
	const before = 4
	for i := range before { // both handlers are at work when the two objects come
		w.untilPhase(w.upload(fmt.Sprintf("before-%d", i)), velerov2.PhaseCompleted)
	}
	open.Store(true)
	done := w.report
	w.set(func() { w.report = func(client.Object) *datamove.Report { return nil } })
	// One node alone reaches each of them, and nobody else writes them: otherwise a conflict would keep the second handler out.
	var both []*velerov2.DataDownload
	for _, node := range nodes {
		both = append(both, w.download("r-"+node, func(o *velerov2.DataDownload) {
			o.Spec.TargetVolume.PVC, o.Finalizers = node, []string{datamove.Finalizer}
		}))
	}
	controlplane.Eventually(t, func() error {
		for _, o := range both {
			err := w.admin.Get(t.Context(), client.ObjectKeyFromObject(o), o)
			if err != nil || o.Status.Phase == velerov2.PhaseInProgress {
				return err
			}
		}
		return errors.New("none is in progress")
	})
	w.set(func() { w.report = done })
	for _, o := range both {
		w.untilPhase(o, velerov2.PhaseCompleted)
	}
	h.end(t, before+len(both))
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.mostRunning > 1 {
		t.Errorf("%d ran at once", h.mostRunning)
	}
}
