package repository

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// Whatever a tree consists of, and however it changes, each of its restore points gives it back.
func TestBackupFiles_modelOfAnyTree(t *testing.T) {
	t.Parallel()
	r, _ := newRepository(t)
	base := t.TempDir()
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		root := filepath.Join(base, fmt.Sprint(n))
		if err := os.Mkdir(root, 0o755); err != nil {
			t.Fatal(err)
		}
		g := treeGenerator{rt: rt, root: root}
		for at := range rapid.IntRange(1, 3).Draw(rt, "restore points") {
			for range rapid.IntRange(0, 12).Draw(rt, "changes") {
				g.change()
			}
			want := readTree(t, root)
			q := filesRequest(root, int64(at))
			q.Source.Path = root
			p, err := r.BackupFiles(t.Context(), q)
			if err != nil {
				rt.Fatal(err)
			}
			to := fmt.Sprintf("%s.to%d", root, at)
			if err := os.Mkdir(to, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := r.RestoreFiles(t.Context(), FilesRestoreRequest{ID: p.ID, Directory: to}); err != nil {
				rt.Fatal(err)
			}
			compareTrees(rt, want, readTree(t, to))
			_ = os.RemoveAll(to)
			time.Sleep(5 * time.Millisecond) // the clock of the file system goes on
		}
		_ = os.RemoveAll(root)
	})
}

// treeGenerator changes a tree at random.
type treeGenerator struct {
	rt   *rapid.T
	root string
}

var generatedNames = []string{"a", "b", "a.b", "a-b", "A", "\xff", "\ufffdff", "x.kopia-entry", "x", "ä", " ", "varve.json", "files", "-", ".hidden"}

// place returns a path in an existing directory.
func (g *treeGenerator) place() string {
	dir := rapid.SampledFrom(g.list(true)).Draw(g.rt, "directory")
	return filepath.Join(dir, rapid.SampledFrom(generatedNames).Draw(g.rt, "name"))
}

// list returns all directories, or all else.
func (g *treeGenerator) list(dirs bool) (out []string) {
	_ = filepath.WalkDir(g.root, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() == dirs {
			out = append(out, path)
		}
		return err
	})
	slices.Sort(out)
	return out
}

// change does one thing. What the file system refuses, because something of this name is there, is left as it is.
func (g *treeGenerator) change() {
	rt, at := g.rt, g.place()
	switch rapid.SampledFrom([]string{"file", "file", "dir", "link", "pipe", "hard", "remove", "mode", "owner", "time", "xattr", "sparse", "rename"}).Draw(rt, "change") {
	case "file":
		text := strings.Repeat(rapid.StringN(0, 20, 40).Draw(rt, "content"), rapid.IntRange(0, 3000).Draw(rt, "times"))
		if st, err := os.Lstat(at); err == nil && !st.Mode().IsRegular() {
			return // A pipe would wait for a reader.
		}
		_ = os.WriteFile(at, []byte(text), 0o644)
	case "dir":
		_ = os.Mkdir(at, 0o755)
	case "link":
		_ = os.Symlink(rapid.SampledFrom(generatedNames).Draw(rt, "target"), at)
	case "pipe":
		_ = unix.Mkfifo(at, 0o600)
	case "hard":
		if all := g.list(false); len(all) > 0 {
			_ = os.Link(rapid.SampledFrom(all).Draw(rt, "of"), at)
		}
	case "remove":
		_ = os.RemoveAll(at)
	case "mode":
		_ = unix.Fchmodat(unix.AT_FDCWD, at, uint32(rapid.IntRange(0, 0o7777).Draw(rt, "mode")), unix.AT_SYMLINK_NOFOLLOW)
	case "owner":
		_ = unix.Lchown(at, rapid.IntRange(0, 70000).Draw(rt, "user"), rapid.IntRange(0, 70000).Draw(rt, "group"))
	case "time":
		ts := unix.Timespec{Sec: rapid.Int64Range(-1e10, 1e11).Draw(rt, "seconds"), Nsec: rapid.Int64Range(0, 999_999_999).Draw(rt, "nanoseconds")}
		_ = unix.UtimesNanoAt(unix.AT_FDCWD, at, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW)
	case "xattr":
		_ = unix.Lsetxattr(at, "trusted."+rapid.SampledFrom([]string{"a", "b", "\xff"}).Draw(rt, "attribute"), []byte(rapid.StringN(0, 10, 20).Draw(rt, "value")), 0)
	case "sparse":
		if st, err := os.Lstat(at); err == nil && !st.Mode().IsRegular() {
			return
		}
		f, err := os.OpenFile(at, os.O_WRONLY|os.O_CREATE, 0o600)
		if err != nil {
			return
		}
		defer f.Close()
		for range rapid.IntRange(0, 4).Draw(rt, "extents") {
			_, _ = f.WriteAt([]byte("data"), rapid.Int64Range(0, 64<<20).Draw(rt, "offset"))
		}
		_ = f.Truncate(rapid.Int64Range(0, 100<<20).Draw(rt, "size"))
	case "rename":
		_ = os.Rename(g.place(), at)
	}
}
