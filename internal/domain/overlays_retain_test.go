package domain

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestOverlays_retainOnlyWhatTheMachineTracks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{
		"root.qcow2", "root.json", "root.qcow2.new", "root.json.new", "gone.qcow2", "gone.json", "half.qcow2.new", "root.old.qcow2", "lost+found", "notes.txt",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	o := Overlays{Dir: dir}
	for range 2 {
		if err := o.Retain([]string{"root", "new"}); err != nil {
			t.Fatal(err)
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		if diff := cmp.Diff([]string{"lost+found", "notes.txt", "root.json", "root.qcow2"}, names); diff != "" {
			t.Error(diff)
		}
	}
}
