package datamover

import (
	"context"

	"golang.org/x/sync/errgroup"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// lateManager is a manager that keeps for itself what is added to it. A manager of controller-runtime that is asked to stop while something is
// added to it may stand still until its grace period is over: Add holds a lock that the stop wants, and waits for a goroutine that waits for the stop.
type lateManager struct {
	ctrl.Manager
	added []manager.Runnable
}

func (m *lateManager) Add(r manager.Runnable) error {
	m.added = append(m.added, r)
	return nil
}

// run runs what was added until ctx ends, or until one of them fails. What was added first, the cache, ends last, so that controllers that
// end get no events from it.
func (m *lateManager) run(ctx context.Context) error {
	all, ctx := errgroup.WithContext(ctx)
	first, stopFirst := context.WithCancel(context.WithoutCancel(ctx))
	all.Go(func() error { return m.added[0].Start(first) })
	all.Go(func() error {
		defer stopFirst()
		others, ctx := errgroup.WithContext(ctx)
		for _, r := range m.added[1:] {
			others.Go(func() error { return r.Start(ctx) })
		}
		return others.Wait()
	})
	return all.Wait()
}
