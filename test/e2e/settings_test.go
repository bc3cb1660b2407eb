//go:build e2e

package e2e

import (
	"context"
	"sync"
)

// moverSettings is held by the test whose settings of the data mover the cluster has. Tests run beside each other, and
// there is one set of settings.
var moverSettings sync.Mutex

// setMover gives the data mover these settings until the test ends. It waits until no other test has its own.
func (s *scene) setMover(text string) {
	s.t.Helper()
	moverSettings.Lock()
	s.t.Cleanup(moverSettings.Unlock)
	ctx := s.t.Context()
	s.t.Cleanup(func() { s.must(s.ResetMover(context.WithoutCancel(ctx))) })
	s.must(s.SetMover(ctx, text))
}
