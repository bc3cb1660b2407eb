package report

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMedian(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		s    Sample
		want float64
	}{{nil, 0}, {Sample{7}, 7}, {Sample{9, 1, 2}, 2}, {Sample{4, 1, 2, 9}, 3}} {
		if got := c.s.Median(); got != c.want {
			t.Errorf("median of %v: %v, want %v", c.s, got, c.want)
		}
	}
}

func TestRatioIsAboveOneWhenVarveIsBetter(t *testing.T) {
	t.Parallel()
	s, p := Sample{4, 2, 3}, Sample{6}
	if r := Smaller("a", "", "s", s, "p", p); r.Ratio != 2 || r.Min != 2 || r.Max != 4 {
		t.Errorf("half the peer's time: %+v", r)
	}
	if r := Larger("a", "", "MiB/s", s, "p", p); r.Ratio != 0.5 {
		t.Errorf("half the peer's rate: %+v", r)
	}
	if r := Smaller("a", "", "s", s, "p", Sample{0}); math.IsInf(r.Ratio, 0) || r.Ratio != 0 {
		t.Errorf("a peer without a figure: %+v", r)
	}
}

func TestMergeReplacesByID(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "bench.json")
	if err := Merge(file, []Row{{ID: "push-a", Value: 1}, {ID: "repo-a", Value: 2, Cost: &Cost{CPUSeconds: 3}}}); err != nil {
		t.Fatal(err)
	}
	if err := Merge(file, []Row{{ID: "repo-b", Value: 5}, {ID: "repo-a", Value: 4}}); err != nil {
		t.Fatal(err)
	}
	var got []Row
	if err := readIfExists(file, &got); err != nil {
		t.Fatal(err)
	}
	want := []Row{{ID: "push-a", Value: 1}, {ID: "repo-a", Value: 4}, {ID: "repo-b", Value: 5}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Merge(file, want); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a file that is something else: %v", err)
	}
}

func TestMachineKeepsOtherParts(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "machine.json")
	for _, part := range []string{"push", "repository"} {
		if err := MergeMachine(file, part, map[string]any{"rounds": part}); err != nil {
			t.Fatal(err)
		}
	}
	var got map[string]any
	if err := readIfExists(file, &got); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"push", "repository"} {
		if d := cmp.Diff(map[string]any{"rounds": part}, got[part]); d != "" {
			t.Errorf("%s: %s", part, d)
		}
	}
	if got["cores"] == nil || got["kernel"] == nil {
		t.Errorf("the machine: %v", got)
	}
}

func TestTableShowsCostsOfBoth(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	plain := Larger("a", "what it is", "s", Sample{1}, "aim", Sample{2})
	Table(&out, []Row{plain})
	if strings.Contains(out.String(), "CPU") {
		t.Errorf("a column without a figure:\n%s", out.String())
	}
	out.Reset()
	dear := plain
	dear.Cost, dear.PeerCost = &Cost{CPUSeconds: 1.25, MemoryMiB: 512.4}, &Cost{CPUSeconds: 22}
	Table(&out, []Row{plain, dear})
	for _, want := range []string{"CPU S", "- / -", "1.25 / 22", "512 / -"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
}

func TestTableShowsProcessorsOfEachProcess(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	row := Larger("a", "what it is", "MiB/s", Sample{1}, "nbdcopy", Sample{2})
	Table(&out, []Row{row})
	if strings.Contains(out.String(), "for each GiB") {
		t.Errorf("processors that nobody measured:\n%s", out.String())
	}
	out.Reset()
	row.Processors, row.PeerProcessors = map[string]float64{"server": 1.25, "launcher": 0.5}, map[string]float64{"qemu": 0.3}
	Table(&out, []Row{row})
	for _, want := range []string{"for each GiB", "1.75 (launcher 0.50, server 1.25)", "0.30 (qemu 0.30)"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
}

func TestModel(t *testing.T) {
	t.Parallel()
	if got := processorModel("processor\t: 0\nmodel name\t: Some CPU @ 2.50GHz\nmodel name\t: other\n"); got != "Some CPU @ 2.50GHz" {
		t.Error(got)
	}
}
