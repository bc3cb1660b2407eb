//go:build root

package disk

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/test/loop"
	"github.com/varvebackup/varve/test/verdict"
)

// A file that shares its blocks with another one takes only the space of what is written to it.
func TestComparison_takesTheSpaceOfWhatDiffers(t *testing.T) {
	t.Parallel()
	fs := loop.NewFileSystem(t, "xfs")
	image, clone := filepath.Join(fs.Dir, "image"), filepath.Join(fs.Dir, "clone")
	content := noise(64*mib, 1)
	if err := os.WriteFile(image, content, 0o600); err != nil {
		t.Fatal(err)
	}
	cloneFile(t, image, clone)
	want := bytes.Clone(content)
	for i := range 64 {
		copy(want[i*mib:], noise(4*kib, uint64(i)+2))
	}
	clear(want[8*mib : 16*mib])
	before := freeBytes(t, fs.Dir)
	compare := &Comparison{}
	target, err := OpenTarget(t.Context(), clone, 64*mib, TargetOptions{Overwrite: true, Compare: compare})
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(target.WriteAt(t.Context(), want[:8*mib], 0), target.WriteAt(t.Context(), want[16*mib:], 16*mib),
		target.Zero(t.Context(), extent.Extent{Offset: 8 * mib, Length: 8 * mib}), target.Sync(t.Context()), target.Close())
	if err != nil {
		t.Fatal(err)
	}
	fs.Unmount(t) // which gives back what XFS reserves around each write to a shared block
	fs.Mount(t, "")
	if got, err := os.ReadFile(clone); err != nil || !bytes.Equal(got, want) {
		verdict.Errorf(t, "other bytes, %v", err)
	}
	if got, err := os.ReadFile(image); err != nil || !bytes.Equal(got, content) {
		verdict.Errorf(t, "the image has other bytes, %v", err)
	}
	const differs = (64-8)*4*kib + 8*mib
	if took := before - freeBytes(t, fs.Dir); compare.WrittenBytes() != differs || took > 2*mib {
		t.Errorf("%d bytes were written, want %d; %d bytes more are taken", compare.WrittenBytes(), differs, took)
	}
}

func cloneFile(t *testing.T, from, to string) {
	t.Helper()
	source, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	target, err := os.Create(to)
	if err == nil {
		err = unix.IoctlFileClone(int(target.Fd()), int(source.Fd()))
		err = errors.Join(err, target.Sync(), target.Close(), source.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

func freeBytes(t *testing.T, dir string) int64 {
	t.Helper()
	unix.Sync()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	return int64(st.Bavail) * st.Frsize
}
