package moverpod

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/test/verdict"
)

// readTree returns what the files and links below a directory hold, by their paths.
func readTree(t *testing.T, root string) map[string]string {
	t.Helper()
	tree := map[string]string{}
	err := filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		tree[name] = info.Mode().String()
		var content []byte
		switch {
		case info.Mode().IsRegular():
			content, err = os.ReadFile(path)
		case info.Mode().Type() == os.ModeSymlink:
			var to string
			to, err = os.Readlink(path)
			content = []byte(to)
		}
		tree[name] += " " + string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func TestMove_files(t *testing.T) {
	t.Parallel()
	s, volume := newSite(t), t.TempDir()
	for name, content := range map[string][]byte{"a": noise(3*mib, 1), "d/b": []byte("b"), "d/e/empty": nil, "disk.img": noise(mib, 2)} {
		path := filepath.Join(volume, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o640); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(50 * time.Millisecond) // What changed last is read again in any case.
	if err := os.Symlink("/etc/passwd", filepath.Join(volume, "link")); err != nil {
		t.Fatal(err)
	}
	up := s.newPod(t, newUpload(filesystem), volume)
	report := up.run(t, datamove.Succeeded)
	if id, err := datamove.ParseSnapshotID(report.SnapshotID); err != nil || id.Form != datamove.Files || id.Namespace != "app" {
		t.Errorf("%v, %v", id, err)
	}
	if want := int64(4*mib + 1); report.TotalBytes != want || report.IncrementalBytes != want || report.ReadBytes != want || report.StoredBytes < 4*mib || up.api.lastBytesDone() != want {
		t.Errorf("%+v, and %d bytes done", report, up.api.lastBytesDone())
	}
	// The same upload is the same restore point; another one reads what has changed.
	if again := s.newPod(t, up.Job, volume).run(t, datamove.Succeeded); again.SnapshotID != report.SnapshotID {
		t.Errorf("%+v", again)
	}
	if err := os.WriteFile(filepath.Join(volume, "d/b"), []byte("changed"), 0o640); err != nil {
		t.Fatal(err)
	}
	if second := s.upload(t, filesystem, volume); second.IncrementalBytes > 2*mib || second.FullReason != "" {
		t.Errorf("%+v", second)
	}
	if err := os.WriteFile(filepath.Join(volume, "d/b"), []byte("b"), 0o640); err != nil {
		t.Fatal(err)
	}

	target := t.TempDir()
	if err := os.Mkdir(filepath.Join(target, "lost+found"), 0o700); err != nil {
		t.Fatal(err)
	}
	down := s.newPod(t, newDownload(filesystem, report.SnapshotID), target)
	down.run(t, datamove.Succeeded)
	if err := os.Remove(filepath.Join(target, "lost+found")); err != nil {
		t.Fatal(err)
	}
	want, got := readTree(t, volume), readTree(t, target)
	for name := range want {
		if want[name] != got[name] {
			verdict.Errorf(t, "%s was not restored as it was", name)
		}
	}
	if len(want) != len(got) {
		verdict.Errorf(t, "%d files, want %d", len(got), len(want))
	}
	if points := s.points(t); len(points) != 2 {
		verdict.Errorf(t, "%d restore points", len(points))
	}
	// What somebody else has there is left alone.
	occupied := t.TempDir()
	if err := os.WriteFile(filepath.Join(occupied, "mine"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.newPod(t, newDownload(filesystem, report.SnapshotID), occupied).fails(t, "new claim")
	if mine, err := os.ReadFile(filepath.Join(occupied, "mine")); err != nil || !bytes.Equal(mine, []byte("mine")) {
		verdict.Errorf(t, "%v", err)
	}
}

func TestMove_emptyVolume(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	report := s.upload(t, filesystem, t.TempDir())
	if report.TotalBytes != 0 || report.SnapshotID == "" {
		t.Errorf("%+v", report)
	}
	target := t.TempDir()
	s.newPod(t, newDownload(filesystem, report.SnapshotID), target).run(t, datamove.Succeeded)
	if left, err := os.ReadDir(target); err != nil || len(left) != 0 {
		t.Errorf("%v, %v", left, err)
	}
}
