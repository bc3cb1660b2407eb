package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/varvebackup/varve/internal/extent"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestFlags(t *testing.T) {
	t.Parallel()
	o, err := parseOptions([]string{"-only", "repo-verify,repo-1tib-mib", "-dir", "/somewhere"})
	if err != nil {
		t.Fatal(err)
	}
	if o.corpusMiB != 4096 || !o.only.wantsAny("repo-x", "repo-verify") || o.only.wantsAny("repo-full-kopia") {
		t.Errorf("%+v", o)
	}
	if o, err := parseOptions([]string{"-blocks", "256k,4M", "-image-gib", "2"}); err != nil || !slices.Equal(o.blocks, blockSizes{"256KiB", "4MiB"}) || o.corpusMiB != 512 {
		t.Errorf("%+v: %v", o, err)
	}
	for _, args := range [][]string{
		{"-only", "repo-verfy"}, {"-blocks", "2m"}, {"-rounds", "0"}, {"-image-gib", "1", "-corpus-mib", "1025"}, {"-blocks", "1m", "-only", "repo-verify"},
	} {
		if _, err := parseOptions(args); err == nil {
			t.Errorf("%v was accepted", args)
		}
	}
}

func TestEveryRowIsMeasuredOnce(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, id := range rowIDs {
		if seen[id] || !strings.HasPrefix(id, "repo-") {
			t.Errorf("row %s", id)
		}
		seen[id] = true
	}
	docs, err := os.ReadFile("../../docs/testing.md")
	if err != nil {
		t.Fatal(err)
	}
	for id := range seen {
		if !bytes.Contains(docs, []byte("`"+id+"`")) {
			t.Errorf("docs/testing.md does not say what %s is", id)
		}
	}
}

func TestRoundsBeginWithAnother(t *testing.T) {
	t.Parallel()
	var got []string
	each := func(name string) func(int) error {
		return func(int) error {
			got = append(got, name)
			return nil
		}
	}
	if err := inRounds(3, each("a"), each("b")); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"a", "b", "b", "a", "a", "b"}, got); d != "" {
		t.Error(d)
	}
	broken := errors.New("broken")
	if err := inRounds(3, func(int) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
}

func TestRowHasCosts(t *testing.T) {
	t.Parallel()
	ours := usages{{wall: time.Second, cpu: 3 * time.Second, memory: 8 * mib, stored: 2 * mib}, {wall: 3 * time.Second, cpu: time.Second, memory: 4 * mib, stored: 2 * mib}}
	r := rowVersusPeer("repo-x", "", "s", wallSeconds, ours, "peer", usages{{wall: 4 * time.Second, memory: gib}})
	if r.Value != 2 || r.Ratio != 2 || r.Cost.CPUSeconds != 2 || r.Cost.MemoryMiB != 6 || r.Cost.StoredMiB != 2 || r.PeerCost.MemoryMiB != 1024 {
		t.Errorf("%+v %+v %+v", r, r.Cost, r.PeerCost)
	}
}

func TestBlocksTable(t *testing.T) {
	t.Parallel()
	took := usages{{wall: 2 * time.Second, cpu: 3 * time.Second, memory: 5 * mib, stored: 7 * mib}}
	var out strings.Builder
	printBlocks(&out, []blockRow{{Block: "1MiB", Full: costOf(took, storedMiB), Worst: costOf(took, func(usage) float64 { return 4.567 })}})
	lines := strings.Split(out.String(), "\n")
	for line, want := range map[int]string{1: "1MiB first full 2.00 3.00 5 7 MiB", 4: "1MiB 0.1 %, worst case 2.00 3.00 5 x 4.57"} {
		if got := strings.Join(strings.Fields(lines[line]), " "); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestAmplification(t *testing.T) {
	t.Parallel()
	s := &step{history: &history{bytes: 16 * gib}, change: scattered}
	if got := s.pieceCount(s.bytes); got != 2621 {
		t.Errorf("%d pieces are 1 %% of 16 GiB", got)
	}
	if got := s.amplificationOf(usage{stored: 2621 * 64 * kib * 4}); got != 4 {
		t.Errorf("%v", got)
	}
	if got := dirty.pieceCount(tib); int64(got)*dirty.length != gib {
		t.Errorf("%d pieces are 1 GiB", got)
	}
}

func TestWorkspaceIsForOneRun(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	left := filepath.Join(parent, workspaceName, "left", "behind")
	if err := os.MkdirAll(left, 0o700); err != nil {
		t.Fatal(err)
	}
	dir, remove, err := openWorkspace(parent, mib)
	if err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("%v: %v", entries, err)
	}
	if _, _, err := openWorkspace(parent, mib); err == nil {
		t.Error("two runs have it")
	}
	if err := os.WriteFile(filepath.Join(dir, "f"), make([]byte, 1234), 0o600); err != nil {
		t.Fatal(err)
	}
	if n, err := bytesIn(dir); err != nil || n != 1234 {
		t.Errorf("%d bytes: %v", n, err)
	}
	if err := remove(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := openWorkspace(parent, 1<<62); err == nil || !strings.Contains(err.Error(), "free") {
		t.Errorf("a run that needs more than there is: %v", err)
	}
	if entries, err := os.ReadDir(parent); err != nil || len(entries) > 0 {
		t.Errorf("left: %v: %v", entries, err)
	}
}

func TestSame(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name string, size, at int64) string {
		path := filepath.Join(dir, name)
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		_, written := f.WriteAt([]byte{1}, at)
		if err := errors.Join(written, f.Truncate(size), f.Close()); err != nil {
			t.Fatal(err)
		}
		return path
	}
	a, b := file("a", 8*mib, 5*mib), file("b", 8*mib, 5*mib)
	if err := compareFiles(t.Context(), a, b); err != nil {
		t.Error(err)
	}
	hole := filepath.Join(dir, "hole")
	if err := errors.Join(os.WriteFile(hole, nil, 0o600), os.Truncate(hole, 8*mib)); err != nil {
		t.Fatal(err)
	}
	for _, other := range []string{file("c", 8*mib, 1*mib), file("d", 9*mib, 5*mib), hole} {
		if compareFiles(t.Context(), a, other) == nil || compareFiles(t.Context(), other, a) == nil {
			t.Errorf("%s is the same as %s", other, a)
		}
	}
	f, err := os.Open(a)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if data, err := dataOf(f); err != nil || !data.Contains(extent.Extent{Offset: 5 * mib, Length: 1}) || data.Bytes() > mib {
		t.Errorf("%v: %v", data, err)
	}
}
