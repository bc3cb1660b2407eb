//go:build root

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/varvebackup/varve/bench/report"
)

// A small run gives every row a value, and leaves neither mounts nor loop devices.
func TestRun_measuresEveryRowAndLeavesNothing(t *testing.T) {
	build := t.TempDir()
	args := []string{"-build", build, "-rounds", "1", "-image-mib", "16", "-clones", "3", "-io-time", "1s"}
	if err := run(t.Context(), args); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(build, "bench.json"))
	if err != nil {
		t.Fatal(err)
	}
	var rows []report.Row
	if err := json.Unmarshal(data, &rows); err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, r := range rows {
		ids = append(ids, r.ID)
		if r.Value <= 0 {
			t.Errorf("%+v", r)
		}
	}
	if diff := cmp.Diff(rowIDs(), ids); diff != "" {
		t.Error(diff)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), build) {
		t.Errorf("something is mounted: %v\n%s", err, mounts)
	}
	devices, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range devices {
		if file, err := os.ReadFile(d); err == nil && strings.Contains(string(file), build) {
			t.Errorf("%s is left on %s", d, file)
		}
	}
	if _, err := os.Stat(filepath.Join(build, workName)); !os.IsNotExist(err) {
		t.Error(err)
	}
}
