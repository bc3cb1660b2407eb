package mover

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"testing"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/nbd"
	"github.com/varvebackup/varve/test/verdict"
)

func TestExport_servesUntilItIsToldToEnd(t *testing.T) {
	t.Parallel()
	r := newRepository(t)
	content := noise(1, 1<<20)
	point, err := Backup(t.Context(), r, BackupRequest{History: r.Source("", "", "/web"), Sources: []Source{{Name: "root", Location: writeFile(t, content)}}})
	if err != nil {
		t.Fatal(err)
	}
	o := ExportOptions{CacheBytes: 1 << 20, Overlay: filepath.Join(t.TempDir(), "overlay"), Description: "the root disk"}
	export, err := OpenExport(t.Context(), r, point.Disks[0], o)
	if err != nil {
		t.Fatal(err)
	}
	var overlay *OverlayError
	if _, err := OpenExport(t.Context(), r, point.Disks[0], o); !errors.As(err, &overlay) || !errors.Is(err, errclass.Conflict) {
		t.Errorf("the same overlay twice: %v", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	defer end()
	served := make(chan error, 1)
	go func() { served <- export.Serve(ctx, l, nil, slog.New(slog.DiscardHandler)) }()

	target := nbd.Target{Network: "tcp", Address: l.Addr().String()}
	if list, err := nbd.List(t.Context(), target, nbd.Options{}); err != nil || len(list) != 1 || list[0] != (nbd.ListedExport{Name: "root", Description: "the root disk"}) {
		t.Errorf("%v: %v", list, err)
	}
	target.Export = "other"
	if _, err := nbd.Dial(t.Context(), target, nbd.Options{}); !errors.Is(err, nbd.ErrUnknownExport) {
		t.Error(err)
	}
	target.Export = "root"
	client, err := nbd.Dial(t.Context(), target, nbd.Options{})
	if err != nil {
		t.Fatal(err)
	}
	copy(content[512:], "written by a client")
	got := make([]byte, len(content))
	if err := errors.Join(client.WriteAt(t.Context(), []byte("written by a client"), 512, 0), client.ReadAt(t.Context(), got, 0), client.Disconnect(t.Context())); err != nil {
		t.Error(err)
	}
	if !bytes.Equal(got, content) {
		verdict.Errorf(t, "other bytes")
	}
	end()
	if err := errors.Join(<-served, export.Close()); err != nil {
		t.Error(err)
	}
}
