package scrub

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/diskset"
)

// loadFrom has a new worker load the state of a directory.
func loadFrom(dir string) (*worker, error) {
	s := New(Options{
		Disks: &diskset.Set{}, Clock: clocktesting.NewFakeClock(time.Unix(1000, 0)), Changed: func() {},
		Logger: slog.New(slog.DiscardHandler),
	})
	w := s.newWorker("disk")
	return w, w.loadState(diskset.Disk{Name: "default-disk", UUID: "disk", Path: dir})
}

// Without the list of volumes that share wrong blocks, nobody says that there are none.
func TestLoadState_keepsWhatItCannotRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, stateFile)
	if err := os.Mkdir(path, 0o700); err != nil { // which cannot be read as a file
		t.Fatal(err)
	}
	w, err := loadFrom(dir)
	if err == nil || w.loaded {
		t.Errorf("what cannot be read was loaded: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	want := state{Format: stateVersion, Shares: []Share{{Object: disk.Name("volume/v"), Parts: []part{{Length: 4096}}}}}
	if err := writeState(dir, want); err != nil {
		t.Fatal(err)
	}
	if w, err = loadFrom(dir); err != nil || !w.loaded || len(w.state.Shares) != 1 || w.state.Omitted {
		t.Errorf("%+v, %v", w.state, err)
	}

	for _, text := range []string{"{", `{"format":2}`} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second time it is what was written the first time
			if w, err = loadFrom(dir); err != nil || !w.loaded || !w.state.Omitted || len(w.state.Shares) > 0 {
				t.Errorf("%s: %+v, %v", text, w.state, err)
			}
		}
		if kept, err := os.ReadFile(filepath.Join(dir, damagedFile)); err != nil || string(kept) != text {
			t.Errorf("%q was kept of %q: %v", kept, text, err)
		}
	}
}
