package repository

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kopia/kopia/repo/object"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/internal/repository/table"
	"github.com/varvebackup/varve/test/verdict"
)

var update = flag.Bool("update", false, "write the golden files anew")

func objectID(tb testing.TB, s string) object.ID {
	tb.Helper()
	id, err := object.ParseID(s)
	if err != nil {
		tb.Fatal(err)
	}
	return id
}

// What is written stays readable: these files are format 1, byte for byte.
func TestFormat_isGolden(t *testing.T) {
	t.Parallel()
	block, zero := objectID(t, "709f757b66fdfb48d0f8323744f1bd7e"), objectID(t, "e9aba507fb694c7f4e9a37d9aeb0a5f0")
	described := &RestorePoint{ID: "000102030405060708090a0b0c0d0e0f", Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Disks: []Disk{
		{
			Name: "root", Bytes: 3<<20 + 512, BlockBytes: mib, Object: objectID(t, "Ix0cce21c6cc23d53c46e1fab215077baf"), Zero: zero, ZeroTail: block,
			Digest: "sha256:00", Identity: "uid", Change: "daily-2", Parent: "p", Base: "daily-1", Stats: Stats{ReadBytes: 2, ZeroBytes: 1, ChangedBytes: 1},
		},
		{Name: "data", Bytes: 512, BlockBytes: 256 * kib, Object: block, Zero: zero, ZeroTail: zero, Digest: "sha256:01", FullReason: FullNoParent},
	}}
	point, err := engine.EncodePoint(described)
	if err != nil {
		t.Fatal(err)
	}
	summary, err := described.Summarize(objectID(t, "k709f757b66fdfb48d0f8323744f1bd7e"))
	if err != nil {
		t.Fatal(err)
	}
	definition := engine.EncodeDefinition(described.ID, []byte(`{"vm": {"name":"<web>"}}`))
	definition = regexp.MustCompile(`"nonce":"[0-9a-f]{32}"`).ReplaceAll(definition, []byte(`"nonce":"00000000000000000000000000000000"`))
	withDefinition := *described
	withDefinition.Definition = engine.NewDefinition(objectID(t, "k709f757b66fdfb48d0f8323744f1bd7e"), definition, 24)
	withDefinition.Disks = described.Disks[1:]
	defined, err := engine.EncodePoint(&withDefinition)
	if err != nil {
		t.Fatal(err)
	}
	region := table.Encode([]object.IndirectObjectEntry{
		{Length: mib, Object: block}, {Start: mib, Length: mib, Object: zero}, {Start: 2 * mib, Length: 512, Object: block},
	})
	for name, got := range map[string][]byte{
		"varve-1.json": append(point, '\n'), "region-1.json": append(region, '\n'),
		"description-1.json": append([]byte(summary), '\n'),
		"definition-1.json":  definition, "varve-1-definition.json": append(defined, '\n'),
	} {
		path := filepath.Join("testdata", name)
		if *update {
			if err := os.WriteFile(path, got, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf(verdict.GoldenMark+"%s: %s", name, diff)
		}
	}
}

func TestFormat_refusesWhatIsNoDescription(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]error{
		``:                                 errclass.Corrupt,
		`{"format":3}`:                     errclass.Invalid,
		`{"format":1}`:                     errclass.Corrupt,
		`{"format":2}`:                     errclass.Corrupt,
		`{"format":2,"id":"0","files":{}}`: errclass.Corrupt,
		`{"format":1,"id":"0","files":{"tree":"k0123","attributes":"k0123"}}`:                                                       errclass.Corrupt,
		`{"format":2,"id":"0","files":{"tree":"k0123","attributes":"k0123"},"disks":[{"name":"a","bytes":1,"blockBytes":1048576}]}`: errclass.Corrupt,
		`{"format":1,"id":"0","definition":{"bytes":1,"digest":"sha256:00"}}`:                                                       errclass.Corrupt,
		`{"format":1,"id":"0","disks":[{"name":"a","bytes":0,"blockBytes":1048576}]}`:                                               errclass.Corrupt,
		`{"format":1,"id":"0","disks":[{"name":"a","bytes":1,"blockBytes":12345}]}`:                                                 errclass.Corrupt,
		`{"format":1,"id":"0","disks":[{"name":"","bytes":1,"blockBytes":1048576}]}`:                                                errclass.Corrupt,
	} {
		if _, err := engine.DecodePoint([]byte(content)); !errors.Is(err, want) {
			t.Errorf("%s: %v", content, err)
		}
	}
}

func FuzzDecodePoint(f *testing.F) {
	golden, err := os.ReadFile(filepath.Join("testdata", "varve-1.json"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(golden)
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := engine.DecodePoint(data)
		if err != nil {
			return
		}
		for _, d := range p.Disks {
			g := table.Geometry{Bytes: d.Bytes, BlockBytes: d.BlockBytes}
			if last := g.Region(g.RegionCount() - 1); last.Empty() || last.End() != d.Bytes {
				t.Errorf("%+v ends at %s", d, last)
			}
		}
	})
}
