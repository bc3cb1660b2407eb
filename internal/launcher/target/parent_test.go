package target

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/manifest"
)

// chainOf makes three backups of root and data on the volume and returns them, the newest last. The first is full,
// the second is incremental, and the third is incremental for root and full for data.
func chainOf(t *testing.T, v *Volume) []Parent {
	t.Helper()
	var chain []Parent
	for i, name := range []string{"b1", "b2", "b3"} {
		m := example(name)
		data := m.Volumes[0]
		data.Name, data.File = "data", "data.qcow2"
		m.Volumes = append(m.Volumes, data)
		if i > 0 {
			parent := chain[i-1]
			relative, err := RelativeTo("vm/"+name, parent.Directory)
			if err != nil {
				t.Fatal(err)
			}
			m.Parent = &manifest.Parent{Checkpoint: "c", BackupUID: "u", Directory: relative, ManifestSHA256: parent.ManifestSHA256}
			m.Volumes[0].Type = manifest.Incremental
			if i == 1 { // data's chain begins with b3
				m.Volumes[1].Type = manifest.Incremental
			}
		}
		if err := v.Begin("vm/"+name, name); err != nil {
			t.Fatal(err)
		}
		for _, volume := range []string{"root", "data"} {
			if err := os.WriteFile(v.Path(PartialFile("vm/"+name, volume)), []byte(name), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		sha, err := v.Commit("vm/"+name, m)
		if err != nil {
			t.Fatal(err)
		}
		chain = append(chain, Parent{Directory: "vm/" + name, ManifestSHA256: sha})
	}
	return chain
}

// What is done to a chain of three, and which disks can be continued from the newest backup afterwards. root's chain
// has all three backups, and data's chain has only the newest.
func TestBrokenChains_followTheWholeChain(t *testing.T) {
	t.Parallel()
	rename := func(from, to string) func(string) error {
		return func(dir string) error { return os.Rename(filepath.Join(dir, from), filepath.Join(dir, to)) }
	}
	remove := func(name string) func(string) error {
		return func(dir string) error { return os.RemoveAll(filepath.Join(dir, name)) }
	}
	inPlace := func(name string, make func(path string) error) func(string) error {
		return func(dir string) error {
			path := filepath.Join(dir, name)
			return errors.Join(os.Remove(path), make(path))
		}
	}
	pipe := func(path string) error { return unix.Mkfifo(path, 0o600) }
	directory := func(path string) error { return os.Mkdir(path, 0o700) }
	text := func(path string) error { return os.WriteFile(path, []byte("{}"), 0o600) }
	for name, test := range map[string]struct {
		damage     func(dir string) error
		root, data error
	}{
		"nothing":                          {func(string) error { return nil }, nil, nil},
		"everything is gone":               {remove("vm"), ErrParentMissing, ErrParentMissing},
		"the parent was renamed":           {rename("vm/b3", "vm/000"), ErrParentMissing, ErrParentMissing},
		"the parent is partial":            {rename("vm/b3", "vm/b3.partial"), ErrParentMissing, ErrParentMissing},
		"the parent's manifest is gone":    {remove("vm/b3/backup.json"), ErrParentMissing, ErrParentMissing},
		"the parent's manifest is another": {inPlace("vm/b3/backup.json", text), ErrParentChanged, ErrParentChanged},
		"the manifest is a pipe":           {inPlace("vm/b3/backup.json", pipe), ErrParentChanged, ErrParentChanged},
		"the manifest is a directory":      {inPlace("vm/b3/backup.json", directory), ErrParentChanged, ErrParentChanged},
		"a disk's file is gone":            {remove("vm/b3/data.qcow2"), nil, ErrParentMissing},
		"a disk's file is a pipe":          {inPlace("vm/b3/root.qcow2", pipe), ErrParentChanged, nil},
		"the first backup is gone":         {remove("vm/b1"), ErrParentMissing, nil},
		"the first backup's file is gone":  {remove("vm/b1/root.qcow2"), ErrParentMissing, nil},
		"another in the middle":            {inPlace("vm/b2/backup.json", text), ErrParentChanged, nil},
		"the directory is a file": {func(dir string) error {
			return errors.Join(remove("vm/b3")(dir), text(filepath.Join(dir, "vm/b3")))
		}, ErrParentChanged, ErrParentChanged},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			v := open(t, dir)
			chain := chainOf(t, v)
			if err := test.damage(dir); err != nil {
				t.Fatal(err)
			}
			broken, err := v.BrokenChains(chain[2], []string{"root", "data"})
			if err != nil {
				t.Fatal(err)
			}
			if !errors.Is(broken["root"], test.root) || !errors.Is(broken["data"], test.data) {
				t.Errorf("%v, want root %v and data %v", broken, test.root, test.data)
			}
		})
	}
}

// Planting a directory with a copy of the parent's manifest, or with one that has the parent's UID, has no effect.
func TestBrokenChains_takeTheRecordedDirectoryAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	v := open(t, dir)
	chain := chainOf(t, v)
	planted := Parent{Directory: "vm/000", ManifestSHA256: chain[2].ManifestSHA256}
	if err := os.CopyFS(filepath.Join(dir, "vm/000"), os.DirFS(filepath.Join(dir, "vm/b1"))); err != nil {
		t.Fatal(err)
	}
	if broken, err := v.BrokenChains(planted, []string{"root"}); err != nil || !errors.Is(broken["root"], ErrParentChanged) {
		t.Errorf("a directory with another manifest: %v, %v", broken, err)
	}
	for _, outside := range []string{"../b3", "/vm/b3", ".", ""} {
		broken, err := v.BrokenChains(Parent{Directory: outside, ManifestSHA256: chain[2].ManifestSHA256}, []string{"root"})
		if err != nil || !errors.Is(broken["root"], ErrParentChanged) {
			t.Errorf("%q: %v, %v", outside, broken, err)
		}
	}
}

func TestBrokenChains_anErrorIsNotAbsence(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	v := open(t, dir)
	chain := chainOf(t, v)
	// A symlink loop is an error even for root.
	path := filepath.Join(dir, "vm/b3")
	if err := errors.Join(os.RemoveAll(path), os.Symlink("b3", path)); err != nil {
		t.Fatal(err)
	}
	if broken, err := v.BrokenChains(chain[2], []string{"root"}); err == nil {
		t.Errorf("%v", broken)
	}
}

func TestBegin_keepsWhatItCannotRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	v := open(t, dir)
	chainOf(t, v)
	path := filepath.Join(dir, "vm/b1/backup.json")
	if err := os.WriteFile(path, []byte(strings.Repeat("x", 10)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := v.Begin("vm/b1", "another"); !errors.Is(err, ErrInvalid) {
		t.Errorf("over a backup whose manifest is damaged: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "vm/b1/root.qcow2")); err != nil {
		t.Error(err)
	}
}
