//go:build peers

package repository

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/varvebackup/varve/test/s3"
	"github.com/varvebackup/varve/test/verdict"
)

// The upstream kopia verifies and restores the tree, and its maintenance loses nothing.
func TestKopiaRestoresFiles(t *testing.T) {
	t.Parallel()
	r, config := newRepository(t)
	m := newTree(t)
	m.manyFiles(300)
	m.file("not utf-8 \xff", []byte("a"), 0o4751)
	m.check(os.Link(m.path("d00/f00000"), m.path("hard")))
	m.check(os.Symlink("d00", m.path("link")))
	m.sparse("sparse", 40<<20, map[int64]string{5 << 20: "five", 33<<20 + 17: "later"})
	m.age("d01/f00001", time.Unix(1, 234567891))
	p := mustBackUpFiles(t, r, filesRequest(m.root, 1))
	kopia := func(args ...string) {
		t.Helper()
		cmd := exec.Command(s3.Program(t, "kopia"), append([]string{"--config-file=" + config, "--log-dir=" + t.TempDir()}, args...)...)
		cmd.Env = append(os.Environ(), "KOPIA_PASSWORD="+testPassword, "KOPIA_CHECK_FOR_UPDATES=false")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("kopia %v: %v\n%s", args, err, out)
		}
	}
	kopia("snapshot", "verify", "--verify-files-percent=100", p.Snapshot)
	to := filepath.Join(t.TempDir(), "to")
	kopia("restore", p.Snapshot+"/files", to)
	want, got := readTree(t, m.root), readTree(t, to)
	for path, e := range want {
		if path == "not utf-8 \xff" {
			path = "not utf-8 \ufffdff"
		}
		g := got[path]
		if g.Mode != e.Mode || g.Content != e.Content || g.Size != e.Size || e.Content != "" && path != "link" && g.Mtime != e.Mtime {
			verdict.Errorf(t, "%s: %+v, want %+v", path, g, e)
		}
	}
	if len(got) != len(want) {
		verdict.Errorf(t, "%d entries, want %d", len(got), len(want))
	}
	kopia("maintenance", "set", "--owner=me")
	kopia("maintenance", "run", "--full", "--safety=none")
	compareTrees(t, want, readTree(t, mustRestoreFiles(t, open(t, config), p)))
}
