package vm

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/disk"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/mover"
	"github.com/varvebackup/varve/internal/repository"
)

// What a location has is listed by machine, one line a backup, from the repository alone. Disks that belong to no whole
// machine are not among them.
func TestListStored(t *testing.T) {
	t.Parallel()
	ctx, at := t.Context(), repository.Location{Directory: filepath.Join(t.TempDir(), "blobs")}
	if err := repository.Create(ctx, at, "testonly", repository.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	r, err := repository.OpenLocation(ctx, at, "testonly", repository.ConnectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close(ctx) }()
	image := filepath.Join(t.TempDir(), "disk.img")
	if err := os.WriteFile(image, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	store := func(claim, group, backup, machine string, definition []byte) string {
		id := strings.ReplaceAll(uuid.NewString(), "-", "")
		_, err := mover.Backup(ctx, r, mover.BackupRequest{
			ID: id, History: r.Source(datamove.HistoryHost, datamove.HistoryUser, mover.HistoryPath("app/"+claim)),
			Group: group, Definition: definition, Labels: map[string]string{
				datamove.LabelMachine:       machine,
				datamove.LabelMachineBackup: backup,
			},
			Sources: []mover.Source{{
				Name: datamove.DiskName, Location: image,
				Options: disk.SourceOptions{Format: disk.Raw},
			}},
		})
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	definition := []byte(`{"version":1}`)
	first := store("web-root", "monday-1", "monday", "web", definition)
	store("web-data", "monday-1", "monday", "web", definition)
	store("db-root", "tuesday-1", "tuesday", "db", definition)
	store("plain", "by-hand", "", "", nil)
	all, err := listStored(ctx, r, "app")
	if err != nil || len(all) != 2 {
		t.Fatalf("%+v %v", all, err)
	}
	if b := all[1]; all[0].machine != "db" || b.name != "monday" || b.disks != 2 || b.bytes != 2<<20 ||
		b.snapshotID != "varve1.disk."+first+".app" {
		t.Errorf("%+v and %+v", all[0], b)
	}

	for name, c := range map[string]struct {
		asked string
		want  *storedBackup
		code  int
	}{
		"by name":   {"monday", all[1], 0},
		"by group":  {"tuesday-1", all[0], 0},
		"not there": {"sunday", nil, errclass.ExitNotFound},
	} {
		got, err := chooseStored(all, c.asked, "shelf", "app")
		if got != c.want || err != nil && failure.Code(err) != c.code {
			t.Errorf("%s: %+v %v", name, got, err)
		}
	}
	twice := append(slices.Clone(all), &storedBackup{name: "monday", group: "monday-2"})
	if _, err := chooseStored(twice, "monday", "shelf", "app"); err == nil ||
		!strings.Contains(err.Error(), "monday-1, monday-2") {
		t.Errorf("two of one name: %v", err)
	}
}
