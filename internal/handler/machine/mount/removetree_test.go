package mount

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// removeAll calls removeTree until nothing is left, and returns how often.
func removeAll(t *testing.T, dir, name string, steps int) int {
	t.Helper()
	parent, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer parent.Close()
	for calls := 1; ; calls++ {
		err := removeTree(parent, name, steps)
		if err == nil {
			return calls
		}
		if !errors.Is(err, ErrUnfinished) {
			t.Fatal(err)
		}
		if calls > 10_000 {
			t.Fatal("it does not come to an end")
		}
	}
}

// nest makes directories in each other, deeper than any path can say, and a file at the bottom.
func nest(t *testing.T, path string, levels int) {
	t.Helper()
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	for range levels {
		if err := unix.Mkdirat(fdOf(dir), "d", 0o755); err != nil {
			t.Fatal(err)
		}
		fd, err := unix.Openat(fdOf(dir), "d", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := dir.Close(); err != nil {
			t.Fatal(err)
		}
		dir = os.NewFile(uintptr(fd), "d")
	}
	fd, err := unix.Openat(fdOf(dir), "bottom", unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err := errors.Join(err, unix.Close(fd), dir.Close()); err != nil {
		t.Fatal(err)
	}
}

// A launcher can nest directories as deep as it likes. The process that removes them must not run out of descriptors:
// it may have 48 here, and the directories are 10,000 deep.
func TestRemoveTree_deepNestingTakesFewDescriptors(t *testing.T) {
	dir := t.TempDir()
	nest(t, filepath.Join(dir, "x.partial"), 10_000)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	low := limit
	low.Cur = 48
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Error(err)
		}
	}()
	removeAll(t, dir, "x.partial", maxSteps)
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// A call removes a bounded number of entries, whatever the directories look like, and the calls come to an end.
func TestRemoveTree_worksInBoundedSteps(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	partial := filepath.Join(dir, "x.partial")
	const wide, bushy = 300, 40
	for i := range wide {
		path := filepath.Join(partial, fmt.Sprintf("w%d", i))
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(path, "file"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	deep := partial
	for range maxDepth + 3 {
		deep = filepath.Join(deep, "d")
	}
	for i := range bushy {
		if err := os.MkdirAll(filepath.Join(deep, fmt.Sprintf("b%d", i), "c"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	const steps = 50
	calls := removeAll(t, dir, "x.partial", steps)
	if least := 2 * wide / steps; calls < least || calls > 4*least {
		t.Errorf("%d calls of %d steps, want %d to %d", calls, steps, least, 4*least)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// What a link names stays, and so does what another name of a file holds. Names that a launcher has taken before a
// directory is moved up are no obstacle.
func TestRemoveTree_leavesTheRestAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	partial, outside := filepath.Join(dir, "x.partial"), filepath.Join(dir, "precious")
	if err := os.MkdirAll(filepath.Join(outside, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	deep := partial
	for range maxDepth {
		deep = filepath.Join(deep, "d")
	}
	if err := os.MkdirAll(filepath.Join(deep, "e"), 0o755); err != nil {
		t.Fatal(err)
	}
	var s unix.Stat_t
	if err := unix.Stat(deep, &s); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(
		os.WriteFile(filepath.Join(partial, fmt.Sprintf(".removing-%x-0", s.Ino)), nil, 0o600),
		os.Symlink(outside, filepath.Join(deep, "e", "link")),
		os.Symlink(outside, filepath.Join(partial, "link")),
	); err != nil {
		t.Fatal(err)
	}
	removeAll(t, dir, "x.partial", maxSteps)
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("left: %v, %v", left, err)
	}
	if _, err := os.Stat(filepath.Join(outside, "sub")); err != nil {
		t.Error(err)
	}
}

func TestRemoveTree_takesFilesAndNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if calls := removeAll(t, dir, "file", maxSteps); calls != 1 {
			t.Errorf("%d calls", calls)
		}
	}
}
