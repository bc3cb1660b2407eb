package mover

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/varvebackup/varve/internal/disk"
	"github.com/varvebackup/varve/internal/repository"
)

// writeFile makes a raw disk with this content.
func writeFile(tb testing.TB, content []byte) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "disk.img")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		tb.Fatal(err)
	}
	return path
}

func TestOpenSources_describesThemInOrder(t *testing.T) {
	t.Parallel()
	sources := []Source{
		{Name: "root", Location: writeFile(t, make([]byte, 3<<16)), Checkpoint: NewCheckpoint()},
		{Name: "data", Location: writeFile(t, make([]byte, 5<<16))},
	}
	opened, err := openSources(t.Context(), sources)
	if err != nil {
		t.Fatal(err)
	}
	for i, bytes := range []int64{3 << 16, 5 << 16} {
		d := opened.disks[i]
		if d.Name != sources[i].Name || d.Bytes != bytes || d.Change != sources[i].Checkpoint || d.Identity == "" || d.Changes != nil {
			t.Errorf("%+v", d)
		}
	}
	if err := opened.Close(); err != nil {
		t.Error(err)
	}
}

func TestOpenSources_namesTheDiskThatFails(t *testing.T) {
	t.Parallel()
	_, err := openSources(t.Context(), []Source{
		{Name: "root", Location: writeFile(t, make([]byte, 1<<16))},
		{Name: "data", Location: filepath.Join(t.TempDir(), "none")},
	})
	var opening *OpenError
	if !errors.As(err, &opening) || opening.Source != "data" || !errors.Is(err, disk.ErrNotFound) {
		t.Error(err)
	}
}

func TestCheckpointNames(t *testing.T) {
	t.Parallel()
	a, b := NewCheckpoint(), NewCheckpoint()
	if a == b || !IsCheckpoint(a) || !IsCheckpoint(b) {
		t.Errorf("%s, %s", a, b)
	}
	for _, name := range []string{"", "monday", "varve-1", a + "0", "x" + a} {
		if IsCheckpoint(name) {
			t.Errorf("%s counts as a name that is used once", name)
		}
	}
}

func TestLatestCheckpoints(t *testing.T) {
	t.Parallel()
	point := func(at int64, changes ...string) *repository.RestorePoint {
		p := &repository.RestorePoint{Time: time.Unix(at, 0)}
		for i, change := range changes {
			p.Disks = append(p.Disks, repository.Disk{Name: []string{"root", "data"}[i], Change: change})
		}
		return p
	}
	for name, c := range map[string]struct {
		points []*repository.RestorePoint
		disk   string
		want   []string
	}{
		"nothing":              {nil, "", nil},
		"the latest":           {[]*repository.RestorePoint{point(2, "b"), point(1, "a")}, "", []string{"b"}},
		"all alike":            {[]*repository.RestorePoint{point(1, "a", "a")}, "", []string{"a"}},
		"different":            {[]*repository.RestorePoint{point(1, "a", "b")}, "", []string{"a", "b"}},
		"one of them":          {[]*repository.RestorePoint{point(1, "a", "b")}, "data", []string{"b"}},
		"an older one has it":  {[]*repository.RestorePoint{point(1, "a", "b"), point(2, "c")}, "data", []string{"b"}},
		"the latest has none":  {[]*repository.RestorePoint{point(1, "a"), point(2, "")}, "", []string{""}},
		"no disk of this name": {[]*repository.RestorePoint{point(1, "a")}, "swap", nil},
	} {
		if diff := cmp.Diff(c.want, LatestCheckpoints(c.points, c.disk)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
