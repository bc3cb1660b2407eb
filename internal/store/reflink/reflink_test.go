package reflink

import (
	"errors"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/disk/piecehash"
)

var goldenImage = metadata{Format: 1, Objects: []entry{{
	Name: "ubuntu-22.04", UID: "a-1", Kind: disk.KindImage, Origin: "m-1", Bytes: 1_000_001,
	Checksum: strings.Repeat("0123456789abcdef", 8),
}}}

var goldenReplica = metadata{Format: 1, Objects: []entry{
	{Name: "日本/s1", UID: "s-1", Kind: disk.KindSnapshot, Parent: "a-1", Origin: "h-1", Bytes: 2_000_000},
	{Name: "pvc-1", UID: "h-1", Kind: disk.KindHead, Parent: "s-1", Origin: "a-1", Bytes: 2_000_000},
}}

// What version 1 wrote is read for ever, and version 1 is written as it was.
func TestFormat_version1(t *testing.T) {
	t.Parallel()
	h, err := piecehash.Read(t.Context(), strings.NewReader(strings.Repeat("x", pieceBytes+1)), pieceBytes+1, "")
	if err != nil {
		t.Fatal(err)
	}
	for name, written := range map[string]any{
		"varve-disk.json": header{Format: 1, UUID: "d-1"}, "image.json": goldenImage, "replica.json": goldenReplica,
	} {
		golden := readGolden(t, name)
		data, err := encodeIndented(written)
		if diff := cmp.Diff(string(golden), string(data)); diff != "" || err != nil {
			t.Errorf("%s: %v (-golden +written):\n%s", name, err, diff)
		}
		if m, ok := written.(metadata); ok {
			read, err := decodeMetadata(golden)
			if diff := cmp.Diff(m, read); diff != "" || err != nil {
				t.Errorf("%s: %v (-want +read):\n%s", name, err, diff)
			}
		}
	}
	if diff := cmp.Diff(readGolden(t, "hashes"), h.Encode()); diff != "" {
		t.Error("hashes", diff)
	}
}

func readGolden(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "version1", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestDecodeMetadata_refuses(t *testing.T) {
	t.Parallel()
	const head = `{"name": "h", "uid": "h", "kind": "head", "bytes": 1}`
	objects := func(all ...string) string { return `{"format": 1, "objects": [` + strings.Join(all, ",") + `]}` }
	other := func(old, other string) string { return strings.ReplaceAll(head, old, other) }
	for name, x := range map[string]struct {
		data  string
		class error
		words string
	}{
		"newer":        {`{"format": 2, "new": 1}`, errclass.Invalid, "use a newer Varve"},
		"no version":   {`{"objects": [` + head + `]}`, errclass.Corrupt, "format version 0"},
		"cut off":      {`{"format": 1, "objects": [`, errclass.Corrupt, ""},
		"unknown":      {`{"format": 1, "more": 1, "objects": [` + head + `]}`, errclass.Corrupt, "more"},
		"empty":        {`{"format": 1}`, errclass.Corrupt, "0 objects"},
		"twice":        {objects(other(`"head"`, `"snapshot"`), head), errclass.Corrupt, "twice"},
		"head first":   {objects(head, other(`"h"`, `"i"`)), errclass.Corrupt, "not the last"},
		"path":         {objects(other(`"h"`, `"../h"`)), errclass.Corrupt, "UID"},
		"no bytes":     {objects(other(`1`, `0`)), errclass.Corrupt, "0 bytes"},
		"kind":         {objects(other(`"head"`, `"tail"`)), errclass.Corrupt, `"tail"`},
		"too long":     {strings.Repeat(" ", maxMetadataBytes) + objects(head), errclass.Corrupt, "too many"},
		"not checksum": {objects(`{"checksum": "00",` + head[1:]), errclass.Corrupt, "SHA-512"},
	} {
		_, err := decodeMetadata([]byte(x.data))
		if !errors.Is(err, x.class) || !strings.Contains(err.Error(), x.words) {
			t.Errorf("%s: %v, class %v, want %v and %q", name, err, errclass.Of(err), x.class, x.words)
		}
	}
}

func FuzzDecodeMetadata(f *testing.F) {
	for _, m := range []metadata{goldenImage, goldenReplica} {
		data, err := encodeIndented(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := decodeMetadata(data)
		if err != nil {
			if errclass.Of(err) != errclass.Corrupt && errclass.Of(err) != errclass.Invalid {
				t.Fatalf("class %v: %v", errclass.Of(err), err)
			}
			return
		}
		written, err := encodeIndented(m)
		if err != nil {
			t.Fatal(err)
		}
		again, err := decodeMetadata(written)
		if diff := cmp.Diff(m, again); diff != "" || err != nil {
			t.Fatalf("%v\n%s", err, diff)
		}
		for _, o := range m.Objects {
			if filepath.Base(string(o.UID)) != string(o.UID) || o.UID == ".." {
				t.Fatalf("the UID %q leads elsewhere", o.UID)
			}
		}
	})
}

// Deleting from the middle and appending keep the chain of parents.
func TestMetadata_chain(t *testing.T) {
	t.Parallel()
	m := goldenReplica.appended(entry{UID: "s-2"}).appended(entry{UID: "s-3"})
	m = m.without(entry{UID: "s-2", Parent: "s-1"}).without(entry{UID: "s-1", Parent: "a-1"})
	var chain []disk.UID
	for _, o := range m.Objects {
		chain = append(chain, o.UID, o.Parent)
	}
	if diff := cmp.Diff([]disk.UID{"s-3", "a-1", "h-1", "s-3"}, chain); diff != "" {
		t.Error(diff)
	}
}

func TestFormat_needsAnEmptyDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, headerFile+".1.new"), nil, 0o600); err != nil { // a crash left it
		t.Fatal(err)
	}
	for range 2 {
		if err := Format(dir, "d-1"); err != nil {
			t.Fatal(err)
		}
	}
	if err := Format(dir, "d-2"); !errors.Is(err, errclass.Conflict) || !strings.Contains(err.Error(), "d-1") {
		t.Error(err)
	}
	if err := Format(dir, "D"); !errors.Is(err, errclass.Invalid) {
		t.Error(err)
	}
	err := Format(filepath.Dir(dir), "d-1")
	if !errors.Is(err, errclass.Conflict) || !strings.Contains(err.Error(), "use an empty") {
		t.Error(err)
	}
}

// mappings returns those of a file of which each block is at an address, or a hole: 0. Negative addresses mean nothing.
func mappings(blocks []int64, join bool) iter.Seq2[mapping, error] {
	var all []mapping
	for i, at := range blocks {
		m := mapping{Extent: extent.Extent{Offset: int64(i) * 4096, Length: 4096}, physical: at * 4096, placed: at > 0}
		if last := len(all) - 1; join && last >= 0 && at > 0 && all[last].placed && all[last].End() == m.Offset &&
			all[last].physical+all[last].Length == m.physical {
			all[last].Length += m.Length
		} else if at != 0 {
			all = append(all, m)
		}
	}
	return func(yield func(mapping, error) bool) {
		for _, m := range all {
			if !yield(m, nil) {
				return
			}
		}
	}
}

// Two files differ in a block unless both have a hole there, or the same address.
func TestCompareMappings_random(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		block := rapid.SliceOfN(rapid.Int64Range(-1, 5), 0, 12)
		newer, older := block.Draw(t, "newer"), block.Draw(t, "older")
		size := int64(len(newer))*4096 - rapid.Int64Range(0, 4095).Draw(t, "cut")
		older = append(older, make([]int64, max(0, len(newer)-len(older)))...)
		var want extent.Set
		for i, at := range newer {
			if at != older[i] || at < 0 {
				want.Append(extent.Extent{Offset: int64(i) * 4096, Length: min(4096, size-int64(i)*4096)})
			}
		}
		var got []extent.Extent
		a, b := mappings(newer, rapid.Bool().Draw(t, "join")), mappings(older, rapid.Bool().Draw(t, "join"))
		for e, err := range compareMappings(a, b, size) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, e)
		}
		var wanted []extent.Extent
		for e := range want.All() {
			wanted = append(wanted, e)
		}
		if diff := cmp.Diff(wanted, got); diff != "" {
			t.Fatalf("%v since %v (-want +got):\n%s", newer, older, diff)
		}
	})
}

// An error of a file that cannot be listed is the end, not a file that does not differ.
func TestCompareMappings_returnsErrors(t *testing.T) {
	t.Parallel()
	failing := func(yield func(mapping, error) bool) { yield(mapping{}, errclass.Transient) }
	good := mappings([]int64{1}, false)
	for _, files := range [][2]iter.Seq2[mapping, error]{{failing, good}, {good, failing}} {
		var got []error
		for _, err := range compareMappings(files[0], files[1], 4096) {
			got = append(got, err)
		}
		if len(got) != 1 || !errors.Is(got[0], errclass.Transient) {
			t.Errorf("%v", got)
		}
	}
}
