//go:build peers

package repository

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/varvebackup/varve/test/s3"
	"github.com/varvebackup/varve/test/verdict"
)

// The upstream kopia finds a lost pack, and nothing wrong once a backup has stored it again: the earlier restore points are whole as well.
func TestLosses_kopiaReadsWhatWasStoredAgain(t *testing.T) {
	t.Parallel()
	r, config := newRepository(t)
	first, want := makeHistory(t, r, 2)
	kopia := func(args ...string) ([]byte, error) {
		cmd := exec.Command(s3.Program(t, "kopia"), append([]string{"--config-file=" + config, "--log-dir=" + t.TempDir()}, args...)...)
		cmd.Env = append(os.Environ(), "KOPIA_PASSWORD="+testPassword, "KOPIA_CHECK_FOR_UPDATES=false")
		return cmd.CombinedOutput()
	}
	st, err := (Location{Directory: blobsOf(config)}).Open(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range packsOf(t, r, first, "p") {
		err = errors.Join(err, st.DeleteBlob(t.Context(), id))
	}
	if err := errors.Join(err, st.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
	if out, err := kopia("snapshot", "verify", "--verify-files-percent=100"); err == nil {
		t.Fatalf("kopia finds nothing wrong:\n%s", out)
	}
	disk := &memory{data: want, point: 2}
	second := mustBackUp(t, open(t, config), Request{Source: testSource, Disks: []DiskSource{disk.source(false)}})
	if out, err := kopia("snapshot", "verify", "--verify-files-percent=100"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, p := range []*RestorePoint{first, second} {
		dir := filepath.Join(t.TempDir(), "out")
		if out, err := kopia("snapshot", "restore", p.Snapshot, dir); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if got, err := os.ReadFile(filepath.Join(dir, "root")); err != nil || !bytes.Equal(got, want) {
			verdict.Errorf(t, "kopia restores %d bytes that differ: %v", len(got), err)
		}
	}
}
