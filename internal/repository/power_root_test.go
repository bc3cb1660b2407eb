//go:build root

package repository

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kopia/kopia/repo/blob"
	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/test/loop"
	"github.com/varvebackup/varve/test/verdict"
)

// powered is a disk with a file system of its own. What it holds at a moment is what is left if power is lost then. It lacks what
// the kernel has not written yet.
type powered struct {
	image, dir string
}

func newPowered(tb testing.TB, dir string) *powered {
	tb.Helper()
	p := &powered{image: filepath.Join(tb.TempDir(), "disk"), dir: dir}
	err := os.WriteFile(p.image, nil, 0o600)
	if err == nil {
		err = os.Truncate(p.image, 256*mib)
	}
	if err != nil {
		tb.Fatal(err)
	}
	// Nothing of the file system may be initialized later, which could be in the middle of a copy.
	mkfs := exec.CommandContext(tb.Context(), "mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", p.image)
	if out, err := mkfs.CombinedOutput(); err != nil {
		tb.Fatalf("mkfs.ext4 (Debian's package e2fsprogs): %v: %s", err, out)
	}
	mountExt4(tb, p.image, dir)
	return p
}

// mountExt4 mounts an image that commits nothing for five minutes unless told to.
func mountExt4(tb testing.TB, image, dir string) {
	tb.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		tb.Fatal(err)
	}
	if err := unix.Mount(loop.Device(tb, image), dir, "ext4", unix.MS_NOATIME, "commit=300"); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			tb.Error(err)
		}
	})
}

// snapshot copies what the disk holds now.
func (p *powered) snapshot(to string) (err error) {
	in, err := os.Open(p.image)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// Power is lost in the middle of an operation, and right after it. What was done exists, nothing is damaged, and the next backup
// is whole.
func TestPowerLoss(t *testing.T) {
	t.Parallel()
	template := newCrashed(t)
	for _, do := range []string{"next", "full", "remove", "pin", "quick", "maintain"} {
		t.Run(do, func(t *testing.T) {
			t.Parallel()
			dir, images := t.TempDir(), t.TempDir()
			disk := newPowered(t, filepath.Join(dir, "blobs"))
			if err := os.Remove(filepath.Join(disk.dir, "lost+found")); err != nil {
				t.Fatal(err)
			}
			before, c := template.copy(t), template.copyTo(t, dir)
			c.site.durable = true
			unix.Sync()
			var moments atomic.Int64
			var failed error
			c.site.changed = func(string, blob.ID) {
				if n := moments.Add(1); n%4 == 2 {
					failed = errors.Join(failed, disk.snapshot(filepath.Join(images, fmt.Sprint(n))))
				}
			}
			j := c.job(t, do)
			o := j.do(t.Context(), c.open(t))
			after := filepath.Join(images, "after")
			if err := errors.Join(failed, disk.snapshot(after)); err != nil || o.Error != "" {
				t.Fatal(err, o.Error)
			}
			c.site.changed = nil
			c.done(j)
			files, err := filepath.Glob(filepath.Join(images, "*"))
			if err != nil || len(files) < 2 {
				t.Fatalf("moments %v, %v", files, err)
			}
			for _, image := range files {
				was := before
				if image == after {
					was = c
				}
				back := was.copy(t)
				mountExt4(t, image, filepath.Join(back.site.dir, "blobs"))
				r := back.open(t)
				if image != after {
					back.settle(t, r, j)
				}
				back.comesBack(t, r, filepath.Base(image))
			}
		})
	}
}

// comesBack checks that everything exists and nothing is damaged, now and after the next backup.
func (c *crashed) comesBack(t *testing.T, r *Repository, when string) {
	t.Helper()
	whole := func() {
		c.check(t, r)
		report, err := r.Verify(t.Context(), VerifyOptions{Percent: 100})
		if err != nil || report.Damaged() {
			verdict.JudgeErrorf(t, err == nil, "power went %s: %+v, %v", when, report, err)
		}
	}
	whole()
	c.write(9000)
	next := c.backUp(9000)
	o := next.do(t.Context(), r)
	if o.Conflict { // Exclusive maintenance died with the power. Its lock counts for a while.
		c.site.move(engine.LockLife + time.Second)
		o = next.do(t.Context(), r)
	}
	if o.Error != "" {
		t.Fatalf("power went %s: the next backup: %s", when, o.Error)
	}
	c.done(next)
	whole()
}
