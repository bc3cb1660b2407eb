package disk

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/mover"
	"github.com/varvebackup/varve/internal/repository"
)

// A server ends well when it is told to, and says why when its storage is gone for good: clients would get errors for ever.
func TestServeExport_saysWhyItEnds(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at, config := repository.Location{Directory: filepath.Join(dir, "blobs")}, filepath.Join(dir, "config")
	if err := repository.Create(t.Context(), at, "password", repository.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := repository.Connect(t.Context(), config, at, "password", repository.ConnectOptions{}); err != nil {
		t.Fatal(err)
	}
	r, err := repository.Open(t.Context(), config, "password")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close(context.WithoutCancel(t.Context())) })
	source := filepath.Join(dir, "disk")
	if err := os.WriteFile(source, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := mover.Backup(t.Context(), r, mover.BackupRequest{History: r.Source("", "", "/web"), Sources: []mover.Source{{Name: "root", Location: source}}})
	if err != nil {
		t.Fatal(err)
	}
	for name, cause := range map[string]error{"interrupted": nil, "gone": errclass.Errorf(errclass.Expired, "the pod is gone")} {
		ctx, end := context.WithCancelCause(t.Context())
		listening, told := io.Pipe()
		ended := make(chan error, 1)
		go func() {
			ended <- serveExport(ctx, told, r, p, &p.Disks[0], nil, &serveFlags{socket: filepath.Join(socketDir(t), "s"), cacheBytes: 1 << 20})
			_ = told.Close()
		}()
		if _, err := listening.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = io.Copy(io.Discard, listening) }()
		end(cause)
		if err := <-ended; !errors.Is(err, cause) || cause == nil && err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
