package scrub

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/store/disk"
)

func TestState_survives(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	want := state{
		Format: stateVersion, Started: time.Unix(1000, 0).UTC(), Ended: time.Unix(900, 0).UTC(), GoesOn: true,
		Image: "u", Piece: 7, Copies: map[disk.UID]copyNotes{"u": {Read: time.Unix(800, 0).UTC()}},
		Omitted: true, Left: []Share{{ImageUUID: "u", Piece: 6, Parts: []part{{6 << 20, 4096, 1 << 31, ""}}}},
		Shares: []Share{{
			Image: "debian", ImageUUID: "u", Object: "volume/pvc-1", Piece: 5, Found: time.Unix(990, 0).UTC(),
			Parts: []part{{5 << 20, 4096, 1 << 30, "01234567"}},
		}},
	}
	if got, err := readState(dir); err != nil || !cmp.Equal(got, state{Format: stateVersion}) {
		t.Errorf("%+v, %v", got, err)
	}
	if err := writeState(dir, want); err != nil {
		t.Fatal(err)
	}
	if got, err := readState(dir); err != nil || !cmp.Equal(got, want) {
		t.Errorf("%v\n%s", err, cmp.Diff(want, got))
	}
	for _, text := range []string{
		"", "{", `{"format":2}`, `{"format":1,"piece":-1}`, `{"format":1,"shares":[{"object":"x"}]}`,
		`{"format":1,"shares":[{"object":"x","parts":[{"length":4097,"sums":"01234567"}]}]}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, stateFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := readState(dir); err == nil || !cmp.Equal(got, state{Format: stateVersion}) {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
}

func TestOverlapping(t *testing.T) {
	t.Parallel()
	a := []part{{0, 100, 1000, ""}, {200, 100, 5000, ""}}
	placed := func(offset, length, physical int64) disk.Placed {
		return disk.Placed{Extent: extent.Extent{Offset: offset, Length: length}, Physical: physical}
	}
	for name, c := range map[string]struct {
		b    []disk.Placed
		want []part
	}{
		"nothing":                {nil, nil},
		"the same":               {[]disk.Placed{placed(0, 100, 1000), placed(200, 100, 5000)}, a},
		"the same in the middle": {[]disk.Placed{placed(50, 200, 1050)}, []part{{50, 50, 1050, ""}}},
		"another place":          {[]disk.Placed{placed(0, 300, 1001)}, nil},
		"no place":               {[]disk.Placed{placed(50, 10, disk.Unplaced)}, []part{{50, 10, 1050, ""}}},
		"another offset":         {[]disk.Placed{placed(1, 100, 1000)}, nil},
	} {
		if diff := cmp.Diff(c.want, findOverlaps(a, c.b)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestPart_within(t *testing.T) {
	t.Parallel()
	p := part{8192, 2*4096 + 3, 1000 << 10, "aaaaaaaabbbbbbbbcccccccc"}
	for name, c := range map[string]struct {
		offset, length int64
		want           part
	}{
		"all":                {0, 1 << 20, p},
		"its end":            {8192 + 4096, 1 << 20, part{8192 + 4096, 4096 + 3, 1000<<10 + 4096, "bbbbbbbbcccccccc"}},
		"its middle":         {8192 + 4096, 4096, part{8192 + 4096, 4096, 1000<<10 + 4096, "bbbbbbbb"}},
		"a part of a block":  {8192, 5, part{8192, 5, 1000 << 10, ""}},
		"a part of the last": {8192, 2*4096 + 2, part{8192, 2*4096 + 2, 1000 << 10, ""}},
	} {
		if diff := cmp.Diff(c.want, p.within(extent.Extent{Offset: c.offset, Length: c.length})); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestDifferentBlocks(t *testing.T) {
	t.Parallel()
	a, b := make([]byte, 5*blockBytes+3), make([]byte, 5*blockBytes+3)
	b[0], b[blockBytes], b[5*blockBytes+2] = 1, 1, 1
	want := []extent.Extent{{Offset: 1 << 20, Length: 2 * blockBytes}, {Offset: 1<<20 + 5*blockBytes, Length: 3}}
	if diff := cmp.Diff(want, differentBlocks(a, b, 1<<20)); diff != "" {
		t.Error(diff)
	}
}

func TestPercentOf(t *testing.T) {
	t.Parallel()
	images := []disk.Object{{UID: "a", Bytes: 1}, {UID: "b", Bytes: 2<<20 + 1}, {UID: "c", Bytes: 4 << 20}}
	for _, c := range []struct {
		uid   disk.UID
		piece int64
		want  int
	}{{"a", 1, 12}, {"b", 2, 37}, {"c", 4, 100}} {
		if got := percentOf(images, c.uid, c.piece); got != c.want {
			t.Errorf("%s %d: %d", c.uid, c.piece, got)
		}
	}
	if got := percentOf(nil, "a", 1); got != 0 {
		t.Error(got)
	}
}

func TestPause_keepsTheRate(t *testing.T) {
	t.Parallel()
	s := New(Options{BytesPerSecond: 20 << 20})
	if got := s.pauseAfter(1 << 20); got != 50*time.Millisecond {
		t.Error(got)
	}
}

func TestMergeParts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ a, b, want []part }{
		"nothing":  {nil, nil, nil},
		"the same": {[]part{{0, 8, 100, ""}}, []part{{0, 8, 100, ""}}, []part{{0, 8, 100, ""}}},
		"apart":    {[]part{{20, 8, 100, ""}}, []part{{0, 8, 500, ""}}, []part{{0, 8, 500, ""}, {20, 8, 100, ""}}},
		"overlap":  {[]part{{0, 8, 100, ""}}, []part{{4, 8, 104, ""}}, []part{{0, 8, 100, ""}, {8, 4, 108, ""}}},
		"no place": {
			[]part{{0, 8, disk.Unplaced, ""}}, []part{{4, 8, disk.Unplaced, ""}}, []part{{0, 8, -1, ""}, {8, 4, -1, ""}},
		},
		"is inside": {[]part{{0, 8, 100, ""}}, []part{{4, 2, 104, ""}}, []part{{0, 8, 100, ""}}},
	} {
		if diff := cmp.Diff(c.want, mergeParts(c.a, c.b)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// What does not fit is remembered by its pieces, and by a flag if these are too many.
func TestState_remembersWhatDoesNotFit(t *testing.T) {
	t.Parallel()
	share := func(piece int64, object disk.Name, offset int64) Share {
		return Share{ImageUUID: "u", Piece: piece, Object: object, Parts: []part{{offset, 8, 100 + offset, ""}}}
	}
	st := state{Shares: make([]Share, maxShares-2)}
	if added := st.addShares([]Share{share(1, "a", 0), share(1, "b", 0)}); added != 2 || len(st.Left) > 0 {
		t.Errorf("there was room, and %d are noted", added)
	}
	if added := st.addShares([]Share{share(1, "c", 0), share(2, "c", 0), share(1, "d", 8)}); added > 0 {
		t.Errorf("%d are noted", added)
	}
	want := []Share{share(1, "", 0), share(2, "", 0)}
	want[0].Parts = append(want[0].Parts, part{8, 8, 108, ""})
	if diff := cmp.Diff(want, st.Left); diff != "" || st.Omitted {
		t.Errorf("omitted: %t; %s", st.Omitted, diff)
	}
	var many []Share
	for i := range int64(maxShares) {
		many = append(many, share(i, "e", 0))
	}
	st.addShares(many)
	if len(st.Left) != maxShares || st.Omitted {
		t.Errorf("%d pieces are left, omitted: %t", len(st.Left), st.Omitted)
	}
	st.addShares([]Share{share(maxShares, "e", 0)})
	if len(st.Left) != maxShares || !st.Omitted {
		t.Errorf("%d pieces are left, omitted: %t", len(st.Left), st.Omitted)
	}
}
