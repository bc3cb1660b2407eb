package collection

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/varvebackup/varve/internal/disk"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export/exporttest"
	"github.com/varvebackup/varve/internal/manifest"
	"github.com/varvebackup/varve/test/exportsite"
)

func TestCollect_rawThroughCutsAndInterruption(t *testing.T) {
	t.Parallel()
	root := exporttest.NewVolume("root", 40<<20+512, false, 1)
	data := exporttest.NewVolume("data", 9<<20, false, 2)
	s := exportsite.Open(t, root, data)
	q := Request{
		Backup: describe(s, "u1", "c1", root, data), Client: exportsite.NewClient(t, exportsite.Cut(s.Options(), 1, 4<<20, 20)),
		Directory: filepath.Join(t.TempDir(), "monday"), Format: disk.Raw,
	}
	interrupted(t, q, "root", 12<<20)
	result := mustCollect(t, q)
	wantFile(t, filepath.Join(q.Directory, "root.raw"), root)
	wantFile(t, filepath.Join(q.Directory, "data.raw"), data)
	wantOnly(t, q.Directory, "root.raw", "data.raw", "backup.json")
	r := result.Volumes[0]
	if r.ResumedBytes < 10<<20 || r.Stats.UsefulBytes > r.DataBytes-10<<20+regionBytes {
		t.Errorf("resumed at %d of %d bytes, and fetched %d", r.ResumedBytes, r.DataBytes, r.Stats.UsefulBytes)
	}
	m := result.Manifest
	if m.Backup.UID != "u1" || m.Checkpoint != "c1" || m.Parent != nil || len(m.Volumes) != 2 || m.Volumes[0].Type != manifest.Full || m.Volumes[0].VirtualBytes != uint64(root.Description.Bytes) || !m.Quiesced {
		t.Errorf("manifest %+v", m)
	}
	if info, err := os.Stat(filepath.Join(q.Directory, "root.raw")); err != nil || allocatedBytes(info) > uint64(r.DataBytes)+1<<20 {
		t.Errorf("root.raw is not sparse: %d bytes for %d: %v", allocatedBytes(info), r.DataBytes, err)
	}

	// Once more: nothing is fetched, but everything is verified.
	s.Kill()
	if again := mustCollect(t, q); again.Manifest.Backup.UID != "u1" || len(again.Volumes) != 0 {
		t.Errorf("again: %+v", again)
	}
	if f, err := os.OpenFile(filepath.Join(q.Directory, "root.raw"), os.O_RDWR, 0); err != nil {
		t.Fatal(err)
	} else if _, err := f.WriteAt([]byte("changed"), 1<<20); errors.Join(err, f.Close()) != nil {
		t.Fatal(err)
	}
	if _, err := Collect(t.Context(), q); !errors.Is(err, errclass.Corrupt) {
		t.Errorf("with a file that was changed: %v", err)
	}
}

func TestCollect_oneVolumeIsComplete(t *testing.T) {
	t.Parallel()
	root := exporttest.NewVolume("root", 30<<20, false, 1)
	data := exporttest.NewVolume("data", 1<<20, false, 2)
	s := exportsite.Open(t, root, data)
	q := Request{Backup: describe(s, "u1", "c1", data, root), Client: exportsite.NewClient(t, s.Options()), Directory: t.TempDir(), Format: disk.Raw, Parallel: 1}
	interrupted(t, q, "root", 1<<20)
	// As if the process had ended before the file had its name.
	if err := os.Rename(filepath.Join(q.Directory, "data.raw"), filepath.Join(q.Directory, "data.raw.partial")); err != nil {
		t.Fatal(err)
	}
	if result := mustCollect(t, q); result.Volumes[0].Stats.Attempts != 0 || result.Volumes[0].DataBytes == 0 {
		t.Errorf("data was fetched again: %+v", result.Volumes[0])
	}
	wantFile(t, filepath.Join(q.Directory, "data.raw"), data)
	wantFile(t, filepath.Join(q.Directory, "root.raw"), root)
	wantOnly(t, q.Directory, "root.raw", "data.raw", "backup.json")
}

func TestCollect_refusesWhatIsAnother(t *testing.T) {
	t.Parallel()
	root := exporttest.NewVolume("root", 30<<20, false, 1)
	s := exportsite.Open(t, root)
	client := exportsite.NewClient(t, s.Options())
	q := Request{Backup: describe(s, "u1", "c1", root), Client: client, Directory: t.TempDir(), Format: disk.Raw}
	interrupted(t, q, "root", 1<<20)
	other := q
	other.Backup = describe(s, "u2", "c2", root)
	if _, err := Collect(t.Context(), other); !errors.Is(err, errclass.Conflict) {
		t.Errorf("half of another backup: %v", err)
	}
	// The point in time changed under the same backup: what was there does not count.
	s.Kill()
	s.Serve(exporttest.NewVolume("root", 30<<20, false, 9))
	s.Start()
	if _, err := Collect(t.Context(), q); err == nil {
		t.Error("half of one point in time was completed with another one")
	}
	s.Kill()
	s.Serve(root)
	s.Start()
	mustCollect(t, q)
	if _, err := Collect(t.Context(), other); !errors.Is(err, errclass.Conflict) {
		t.Errorf("another backup: %v", err)
	}
	foreign := Request{Backup: q.Backup, Client: client, Directory: t.TempDir(), Format: disk.Raw}
	if err := os.WriteFile(filepath.Join(foreign.Directory, "root.raw"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Collect(t.Context(), foreign); !errors.Is(err, errclass.Conflict) {
		t.Errorf("a foreign file: %v", err)
	}
}

func TestCollect_refusesNamesAndForms(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", ".", "..", "../up", "a/b", ".hidden"} {
		b := Backup{UID: "u", VM: "web", Volumes: []Volume{{}}}
		b.Volumes[0].Name = name
		if _, err := Collect(t.Context(), Request{Backup: b, Directory: t.TempDir()}); !errors.Is(err, errclass.Invalid) {
			t.Errorf("volume %q: %v", name, err)
		}
	}
	b := Backup{UID: "u", VM: "web", Volumes: []Volume{{}}}
	b.Volumes[0].Name, b.Volumes[0].Incremental = "root", true
	if _, err := Collect(t.Context(), Request{Backup: b, Directory: t.TempDir(), Format: disk.Raw}); !errors.Is(err, errclass.Invalid) {
		t.Errorf("an incremental as raw: %v", err)
	}
	if _, err := Collect(t.Context(), Request{Backup: b, Directory: filepath.Join(t.TempDir(), "x")}); !errors.Is(err, ErrNoParent) {
		t.Errorf("without a parent: %v", err)
	}
	if _, err := Collect(t.Context(), Request{Backup: Backup{UID: "u"}, Directory: t.TempDir()}); !errors.Is(err, errclass.Invalid) {
		t.Errorf("without volumes: %v", err)
	}
}
