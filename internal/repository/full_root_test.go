//go:build root

package repository

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kopia/kopia/repo/blob"
	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/storage"
	"github.com/varvebackup/varve/internal/repository/storage/blobhttp"
)

// small is a separate file system that can run full.
type small struct {
	dir string
}

func newSmall(tb testing.TB, dir string, bytes int64) *small {
	tb.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		tb.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", bytes)); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			tb.Error(err)
		}
	})
	return &small{dir: dir}
}

// leave fills the file system until this many bytes are free.
func (s *small) leave(tb testing.TB, bytes int64) {
	tb.Helper()
	var fs unix.Statfs_t
	err := unix.Statfs(s.dir, &fs)
	free := int64(fs.Bfree)*fs.Bsize - bytes
	if err == nil {
		err = os.WriteFile(filepath.Join(s.dir, "filler"), make([]byte, max(0, free)), 0o600)
	}
	if err != nil {
		tb.Fatal(err)
	}
}

// free makes room again.
func (s *small) free(tb testing.TB) {
	tb.Helper()
	if err := os.Remove(filepath.Join(s.dir, "filler")); err != nil {
		tb.Fatal(err)
	}
}

// full returns a copy of c on a small file system with this many bytes left.
func (c *crashed) full(tb testing.TB, left int64) (*crashed, *small) {
	tb.Helper()
	dir := tb.TempDir()
	disk := newSmall(tb, filepath.Join(dir, "blobs"), 128*mib)
	out := c.copyTo(tb, dir)
	disk.leave(tb, left)
	return out, disk
}

// noSpace checks that an operation failed for lack of space, and says so.
func noSpace(tb testing.TB, o outcome) {
	tb.Helper()
	if !strings.Contains(o.Error, "no space left on device") {
		tb.Fatalf("%+v", o)
	}
}

// A backup that finds the repository's file system full leaves no restore point. What it stored is not stored again once there is
// room.
func TestFullDuringABackup(t *testing.T) {
	t.Parallel()
	template := newCrashed(t)
	random := rand.New(rand.NewPCG(1, 5))
	for _, at := range []int64{5 * mib, 40 * mib, 70 * mib} {
		template.now.write(noise(random, 20*mib), at)
	}
	c, disk := template.full(t, 40*mib)
	r := c.open(t)
	before := indexed(t, r)
	j := c.job(t, "next")
	j.Slow, j.Every = time.Millisecond, 20*time.Millisecond
	noSpace(t, j.do(t.Context(), r))
	c.check(t, c.open(t))

	disk.free(t)
	refresh(t, r)
	stored := indexed(t, r) - before
	o := j.do(t.Context(), r)
	if o.Error != "" {
		t.Fatal(o.Error)
	}
	refresh(t, r)
	missing := indexed(t, r) - before - stored
	t.Logf("%d bytes were stored before the file system was full; of %d that were missing then, %d were stored", stored, missing, o.Uploaded)
	if stored < 10*mib || o.Uploaded < missing || o.Uploaded > missing+missing/10+300*kib {
		t.Errorf("%d bytes were stored, %d missing, and then %d stored", stored, missing, o.Uploaded)
	}
	c.done(j)
	c.recovers(t, j, nil)
}

// Whatever finds the file system full: the restore points exist and can be restored meanwhile, and everything goes on once there
// is room.
func TestFullDuringEverythingElse(t *testing.T) {
	t.Parallel()
	template := newCrashed(t)
	for _, x := range []struct {
		do   string
		left int64
	}{
		{"full", 0},
		{"next", 0},
		{"next", 600 * kib},
		{"remove", 0},
		{"pin", 0},
		{"quick", 0},
		{"maintain", 0},
		{"maintain", 16 * kib},
		{"maintain", 600 * kib},
	} {
		t.Run(fmt.Sprintf("%s/%d", x.do, x.left), func(t *testing.T) {
			t.Parallel()
			c, disk := template.full(t, x.left)
			j := c.job(t, x.do)
			noSpace(t, j.do(t.Context(), c.open(t)))
			c.check(t, c.open(t))
			disk.free(t)
			c.recovers(t, j, nil)
		})
	}
}

// A connection does without its cache if there is no room for it, and everything goes on. Once there is room again, it has its
// cache.
func TestFullCache(t *testing.T) {
	t.Parallel()
	template := newCrashed(t)
	for _, left := range []int64{0, 64 * kib} {
		t.Run(fmt.Sprint(left), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			disk := newSmall(t, filepath.Join(dir, "host.cache"), 4*storage.MinCacheBytes)
			c := template.copyTo(t, dir)
			disk.leave(t, left)
			r := c.open(t)
			if err := r.WithoutCache(); !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), disk.dir) {
				t.Errorf("without its cache because of %v", err)
			}
			c.check(t, r)
			c.does(t, r, c.job(t, "next"))
			c.does(t, r, c.job(t, "maintain"))
			c.check(t, r)
			disk.free(t)
			r = c.open(t)
			if err := r.WithoutCache(); err != nil {
				t.Error(err)
			}
			c.check(t, r)
			c.recovers(t, c.backUp(6000), nil)
		})
	}
}

// A full repository can be read. There is no lease then, and no trace of one.
func TestFullWhereARestorePointIsRead(t *testing.T) {
	t.Parallel()
	c, disk := newCrashed(t).full(t, 0)
	r := c.open(t)
	if _, err := r.Lease(t.Context(), c.ids[2000], nil); err == nil || !strings.Contains(err.Error(), "no space left on device") {
		t.Fatalf("%v", err)
	}
	c.check(t, r)
	disk.free(t)
	c.check(t, c.open(t))
	if n := leases(t, r); n > 0 {
		t.Errorf("%d leases", n)
	}
	l, err := r.Lease(t.Context(), c.ids[2000], func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Release(); err != nil {
		t.Error(err)
	}
}

// A storage that is full says so, whoever has it; a full target of a restore is no full storage.
func TestFull_isToldOfWhatIsFull(t *testing.T) {
	t.Parallel()
	disk := newSmall(t, filepath.Join(t.TempDir(), "small"), mib)
	st, err := storage.Location{Directory: disk.dir}.Open(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(blobhttp.NewHandler(func(context.Context) (blob.Storage, error) { return st, nil }))
	t.Cleanup(server.Close)
	client := blobhttp.NewClient("shelf", func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", server.Listener.Addr().String())
	})
	t.Cleanup(client.Shut)
	served, err := storage.Location{Served: client}.Open(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	for name, st := range map[string]blob.Storage{"directory": st, "served": served} {
		err := st.PutBlob(t.Context(), "pack", storage.Bytes(make([]byte, 2*mib)), blob.PutOptions{})
		if !errors.Is(err, storage.ErrFull) || errors.Is(err, errclass.ErrTargetFull) {
			t.Errorf("%s: %v, class %v", name, err, errclass.Of(err))
		}
	}

	r, _ := newRepository(t)
	tree := newTree(t)
	tree.file("large", noise(rand.New(rand.NewPCG(1, 6)), 2*mib), 0o600)
	p := mustBackUpFiles(t, r, filesRequest(tree.root, 1000))
	target := filepath.Join(disk.dir, "target")
	if err := os.Mkdir(target, 0o700); err != nil {
		t.Fatal(err)
	}
	err = r.RestoreFiles(t.Context(), FilesRestoreRequest{ID: p.ID, Directory: target})
	if !errors.Is(err, errclass.ErrTargetFull) || errors.Is(err, storage.ErrFull) ||
		!strings.Contains(err.Error(), target) {
		t.Errorf("target: %v, class %v", err, errclass.Of(err))
	}
}
