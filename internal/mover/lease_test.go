package mover

import (
	"context"
	"errors"
	"testing"

	"github.com/varvebackup/varve/internal/errclass"
)

func TestWithLease_needsTheRestorePoint(t *testing.T) {
	t.Parallel()
	r := newRepository(t)
	unexpected := func(err error) { t.Errorf("warning: %v", err) }
	called := false
	if err := WithLease(t.Context(), r, "0123456789abcdef0123456789abcdef", unexpected, func() error { called = true; return nil }); !errors.Is(err, errclass.NotFound) || called {
		t.Errorf("called: %t, %v", called, err)
	}
}

func TestWithLease_returnsWhatTheFunctionReturns(t *testing.T) {
	t.Parallel()
	r := newRepository(t)
	point, err := Backup(t.Context(), r, BackupRequest{History: r.Source("", "", "/web"), Sources: []Source{{Name: "root", Location: writeFile(t, noise(1, 1<<16))}}})
	if err != nil {
		t.Fatal(err)
	}
	unexpected := func(err error) { t.Errorf("warning: %v", err) }
	failed := errors.New("failed")
	if err := WithLease(t.Context(), r, point.ID, unexpected, func() error { return failed }); !errors.Is(err, failed) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := WithLease(ctx, r, point.ID, unexpected, func() error { t.Error("it was called"); return nil }); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
