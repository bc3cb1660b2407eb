package manifest

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/varvebackup/varve/test/verdict"
)

func example() Manifest {
	return Manifest{
		FormatVersion: FormatVersion,
		Namespace:     "default",
		VM:            "web",
		Backup:        Backup{Name: "tuesday", UID: "5d0c0d5e-0000-4000-8000-000000000002"},
		Tracker:       "nightly",
		Checkpoint:    "nightly-2026-11-20T17:05:06Z",
		Parent: &Parent{
			Checkpoint: "nightly-2026-11-19T17:05:06Z", BackupUID: "5d0c0d5e-0000-4000-8000-000000000001", Directory: "../monday-20261119T170506Z",
		},
		PointInTime: time.Date(2026, 11, 20, 17, 5, 7, 250e6, time.UTC),
		Quiesced:    true,
		Volumes: []Volume{
			{Name: "root", Type: Incremental, VirtualBytes: 10 << 30, MovedBytes: 3 << 20, File: "root.qcow2", SHA256: strings.Repeat("ab", 32)},
			{Name: "data", Type: Full, FullReason: "BitmapLost", VirtualBytes: 1 << 30, MovedBytes: 5 << 20, File: "data.qcow2", SHA256: strings.Repeat("01", 32)},
		},
	}
}

// The golden file is what format version 1 looks like on disk. It never changes: a change of the format is a new version with its
// own golden file.
func TestEncode_version1IsGolden(t *testing.T) {
	t.Parallel()
	golden, err := os.ReadFile("testdata/v1.json")
	if err != nil {
		t.Fatal(err)
	}
	got, err := Encode(example())
	if err != nil {
		t.Fatal(err)
	}
	verdict.Golden(t, "testdata/v1.json", got)
	decoded, err := Decode(golden)
	if err != nil {
		t.Fatal(err)
	}
	want := example()
	if diff := cmp.Diff(&want, decoded); diff != "" {
		t.Errorf(verdict.GoldenMark+"decoded (-want +got):\n%s", diff)
	}
}

func TestEncode_writesUTC(t *testing.T) {
	t.Parallel()
	m := example()
	m.PointInTime = m.PointInTime.In(time.FixedZone("x", 3600))
	got, err := Encode(m)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(got), `"2026-11-20T17:05:07.25Z"`) {
		t.Errorf("not in UTC:\n%s", got)
	}
}

func TestManifest_invalidIsRefusedBothWays(t *testing.T) {
	t.Parallel()
	for name, breakIt := range map[string]func(*Manifest){
		"no uid":                     func(m *Manifest) { m.Backup.UID = "" },
		"no vm":                      func(m *Manifest) { m.VM = "" },
		"volume twice":               func(m *Manifest) { m.Volumes[1].Name = "root" },
		"file outside":               func(m *Manifest) { m.Volumes[0].File = "../root.qcow2" },
		"file is dot dot":            func(m *Manifest) { m.Volumes[0].File = ".." },
		"no file":                    func(m *Manifest) { m.Volumes[0].File = "" },
		"short hash":                 func(m *Manifest) { m.Volumes[0].SHA256 = "abcd" },
		"hash is not hex":            func(m *Manifest) { m.Volumes[0].SHA256 = strings.Repeat("zz", 32) },
		"incremental without parent": func(m *Manifest) { m.Parent = nil },
		"unknown type":               func(m *Manifest) { m.Volumes[0].Type = "Differential" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := example()
			breakIt(&m)
			if _, err := Encode(m); !errors.Is(err, ErrInvalid) {
				t.Errorf("encoded: %v", err)
			}
		})
	}
}

func TestDecode_refuses(t *testing.T) {
	t.Parallel()
	golden, err := os.ReadFile("testdata/v1.json")
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string]string{
		"another version": strings.Replace(string(golden), `"formatVersion": 1`, `"formatVersion": 2`, 1),
		"half a file":     string(golden[:len(golden)/2]),
		"nothing":         "",
		"too much":        string(golden) + strings.Repeat(" ", MaxBytes),
	} {
		if _, err := Decode([]byte(data)); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	added := strings.Replace(string(golden), `"vm": "web"`, `"vm": "web", "later": true`, 1)
	if _, err := Decode([]byte(added)); err != nil {
		t.Errorf("an added field was refused: %v", err)
	}
}

// What Decode accepts can be encoded, and means the same again.
func FuzzDecode(f *testing.F) {
	golden, err := os.ReadFile("testdata/v1.json")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(golden)
	f.Add([]byte(`{"formatVersion":1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := Decode(data)
		if err != nil {
			return
		}
		again, err := Encode(*m)
		if err != nil {
			return // A time outside of RFC 3339 cannot be encoded.
		}
		if _, err := Decode(again); err != nil {
			t.Errorf("decoded, encoded, and then: %v", err)
		}
	})
}
