package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/varvebackup/varve/internal/extent"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOptions(t *testing.T) {
	t.Parallel()
	o, err := parseOptions([]string{"-only", "pull-stream,pull-data-4", "-rounds", "2"})
	if err != nil || !o.wants("pull-stream") || o.wants("pull-data-1") || o.rounds != 2 {
		t.Errorf("%+v: %v", o, err)
	}
	for _, args := range [][]string{{"-only", "pull-steam"}, {"-rounds", "0"}, {"-data-mib", "1"}, {"more"}} {
		if _, err := parseOptions(args); err == nil {
			t.Errorf("%v was accepted", args)
		}
	}
}

// Changes that touch would be one region, and fewer requests.
func TestScatteredRegions_doNotTouch(t *testing.T) {
	t.Parallel()
	const size = 64 << 20
	regions := scatteredRegions(size)
	if len(regions) != size/strideBytes {
		t.Errorf("%d regions", len(regions))
	}
	end := int64(-1)
	for _, e := range regions {
		if e.Offset <= end || e.Length != regionBytes || e.Offset%regionBytes != 0 || e.End() > size {
			t.Fatalf("%v after %d", e, end)
		}
		end = e.End()
	}
}

func TestParts_areTheWholeDisk(t *testing.T) {
	t.Parallel()
	var at int64
	for _, e := range parts(1000, 3) {
		if e.Offset != at {
			t.Errorf("%v after %d", e, at)
		}
		at = e.End()
	}
	if at != 1000 {
		t.Errorf("the parts end at %d", at)
	}
}

// A client that reads other bytes ends the benchmark.
func TestCompare_findsWrongBytes(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(file, []byte("0123456789"), 0o600); err != nil {
		t.Fatal(err)
	}
	image, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	c := &client{image: image}
	if err := c.compare(3, []byte("345")); err != nil {
		t.Error(err)
	}
	if err := c.compare(3, []byte("346")); err == nil {
		t.Error("wrong bytes were taken for right ones")
	}
	if err := c.compare(8, []byte("890")); err == nil {
		t.Error("bytes beyond the end were taken for right ones")
	}
	if got := byteRange(extent.Extent{Offset: 5, Length: 10}); got != "bytes=5-14" {
		t.Error(got)
	}
}

func TestGuestTimes(t *testing.T) {
	t.Parallel()
	const out = `goos: linux
BenchmarkPull_guestWrites/idle-2         	       1	         0 ns/op	         2.000 p50-ms	         4.000 p99-ms
BenchmarkPull_guestWrites/fast-2         	       1	         0 ns/op	         3.000 p50-ms	         8.000 p99-ms
BenchmarkPull_guestWrites/slow-2         	       1	         0 ns/op	         2.500 p50-ms	         6.000 p99-ms
PASS
`
	times := guestTimes{}
	times.addResults(out)
	if d := cmp.Diff([]float64{8}, []float64(times["fast/p99-ms"])); d != "" {
		t.Error(d)
	}
	rows, err := guestRows(times)
	if err != nil || len(rows) != 2 {
		t.Fatalf("%+v: %v", rows, err)
	}
	if rows[0].Value != 2 || rows[0].Ratio != 0.75 || rows[1].Value != 1.5 {
		t.Errorf("%+v", rows)
	}
	if _, err := guestRows(guestTimes{}); err == nil {
		t.Error("rows of nothing")
	}
}
