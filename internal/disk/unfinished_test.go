package disk

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/varvebackup/varve/internal/errclass"
)

// A disk with an unfinished restore is not a source.
func TestRestore_halfOfOneIsNoSource(t *testing.T) {
	t.Parallel()
	halfOfARestore(t, SourceOptions{Format: Raw})
}

func halfOfARestore(t *testing.T, o SourceOptions) {
	t.Helper()
	dir := t.TempDir()
	path, link := filepath.Join(dir, "disk.img"), filepath.Join(dir, "link")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	content := noise(mib, 1)
	// The target is opened by one name, the source by the other.
	open := func() (Target, *Journal) {
		j := newTestJournal(t, JournalOptions{Token: "a"})
		target, err := OpenTarget(t.Context(), link, mib, TargetOptions{Format: o.Format, Journal: j})
		if err != nil {
			t.Fatal(err)
		}
		return target, j
	}
	target, j := open()
	restore(t, target, j, content, 3)
	if err := errors.Join(j.Save(t.Context(), target), target.Close()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{path, link} {
		_, err := OpenSource(t.Context(), name, o)
		wantError(t, err, errclass.Conflict, name, "start the same restore again to complete it", "remove "+path+JournalSuffix)
	}

	// A journal that cannot be read may belong to this file.
	journal, err := os.ReadFile(path + JournalSuffix)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+JournalSuffix, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = OpenSource(t.Context(), path, o)
	wantError(t, err, errclass.Conflict, path)
	if err := os.WriteFile(path+JournalSuffix, journal, 0o600); err != nil {
		t.Fatal(err)
	}

	target, j = open()
	if j.DoneBytes() != 3*64*kib {
		t.Errorf("%d bytes are done", j.DoneBytes())
	}
	restore(t, target, j, content, 100)
	if err := errors.Join(target.Close(), j.Remove()); err != nil {
		t.Fatal(err)
	}
	wantBytes(t, openSource(t, link, o), content)
}

// A file that took the place of a half-restored one is not that one.
func TestJournal_ofAnotherFileSaysNothing(t *testing.T) {
	t.Parallel()
	path, j := filepath.Join(t.TempDir(), "disk.img"), newTestJournal(t, JournalOptions{Token: "a"})
	target, err := OpenTarget(t.Context(), path, mib, TargetOptions{Journal: j})
	if err != nil {
		t.Fatal(err)
	}
	if err := target.Close(); err != nil {
		t.Fatal(err)
	}
	content := noise(mib, 2)
	if err := os.WriteFile(path+".other", content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".other", path); err != nil {
		t.Fatal(err)
	}
	wantBytes(t, openSource(t, path, SourceOptions{}), content)
}
