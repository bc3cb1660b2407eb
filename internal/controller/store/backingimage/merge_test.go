package backingimage

import (
	"strings"
	"testing"
	"time"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
)

// A report that is missing makes a copy unknown, and nothing else.
func TestMerge(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		edit          func(*fixture)
		states, words string // of disk b
	}{
		"it is wanted": {func(f *fixture) { f.wants("b") }, "pending", "the store of node b has not begun the copy"},
		"its store never ran": {func(f *fixture) {
			f.wants("b")
			delete(f.managers, "b")
		}, "pending", "the store of node b has never reported"},
		"its disk is unknown": {func(f *fixture) {
			f.wants("b")
			delete(f.nodes, "b")
			delete(f.managers, "b")
		}, "pending", "no Node lists the disk disk-b"},
		"its store is silent": {func(f *fixture) {
			f.wants("b")
			f.was("b", ready, time.Hour)
			f.reports("b", ready)
			f.silent("b")
		}, "unknown", "the store of node b reported last at 2026-11-30T08:56:00Z"},
		"its store is silent, and this controller is new": {func(f *fixture) {
			f.wants("b")
			f.reports("b", inProgress)
			f.silent("b")
		}, "unknown", ""},
		"its store is gone": {func(f *fixture) {
			f.wants("b")
			f.was("b", inProgress, time.Hour)
			delete(f.managers, "b")
		}, "unknown", "has never reported"},
		"its disk is not mounted": {func(f *fixture) {
			f.wants("b")
			f.was("b", ready, time.Hour)
			f.closeDisk("b", longhornv1.ReasonDiskUnusable, "it is not mounted")
		}, "unknown", "disk default-disk of node b cannot be used: it is not mounted"},
		"its disk is full, and has no copy": {func(f *fixture) {
			f.wants("b")
			f.was("b", ready, time.Hour)
			f.closeDisk("b", longhornv1.ReasonDiskPressure, "it is full")
		}, "pending", ""},
		"it is being deleted": {func(f *fixture) {
			f.was("b", ready, time.Hour)
			f.reports("b", ready)
		}, "ready", "not in spec.diskFileSpecMap: the store of node b deletes it"},
		"it was deleted": {func(f *fixture) { f.was("b", ready, time.Hour) }, "", ""},
		"it was to be deleted when its store went": {func(f *fixture) {
			f.was("b", ready, time.Hour)
			f.silent("b")
		}, "unknown", ""},
		"it was to be deleted when its disk went for good": {func(f *fixture) {
			f.was("b", ready, time.Hour)
			delete(f.nodes, "b")
		}, "", ""},
		"the copy of an image of before": {func(f *fixture) {
			f.reports("b", ready, func(i *longhornv1.BackingImageV2CopyInfo) { i.UUID = "before" })
		}, "", ""},
		"another checksum": {func(f *fixture) {
			f.wants("b")
			f.reports("b", ready, func(i *longhornv1.BackingImageV2CopyInfo) { i.CurrentChecksum = strings.Repeat("c", 128) })
		}, "failed", "the copy has the SHA-512 cccccccccccccccc…, and the image abababababababab…"},
		"other hashes of pieces": {func(f *fixture) {
			f.wants("b")
			f.reports("b", ready, func(i *longhornv1.BackingImageV2CopyInfo) { i.PiecesChecksum = strings.Repeat("c", 64) })
		}, "failed", "the hashes of the copy's pieces are not those of the image"},
		"no checksum": {func(f *fixture) {
			f.wants("b")
			f.reports("b", ready, func(i *longhornv1.BackingImageV2CopyInfo) { i.CurrentChecksum = "" })
		}, "failed", "the store of node b reports no checksum"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture()
			f.isReady("a")
			c.edit(f)
			p := f.decide()
			got := p.status.DiskFileStatusMap["disk-b"]
			switch {
			case got == nil && c.states == "":
				return
			case got == nil || string(got.State) != c.states || !strings.Contains(got.Message, c.words):
				t.Fatalf("%+v, want %s %q", got, c.states, c.words)
			}
			want := now.Format(time.RFC3339)
			if before := f.image.Status.DiskFileStatusMap["disk-b"]; before != nil && before.State == got.State {
				want = before.LastStateTransitionTime
			}
			if got.LastStateTransitionTime != want {
				t.Errorf("it is so since %s, want %s", got.LastStateTransitionTime, want)
			}
			if s := p.status; s.Checksum != sum || s.PiecesChecksum != pieceSum || s.ReadyCopies != 1 {
				t.Errorf("status %+v", s)
			}
		})
	}
}

// What the first copy is never changes, and no copy without a checksum says what it is.
func TestMerge_identity(t *testing.T) {
	t.Parallel()
	f := newFixture()
	f.begun("a", inProgress)
	f.reports("a", ready, func(i *longhornv1.BackingImageV2CopyInfo) { i.CurrentChecksum = "" })
	if s := f.decide().status; s.Checksum != "" || s.Size != 0 || s.V2FirstCopyStatus != failed {
		t.Errorf("status %+v", s)
	}
	f.reports("a", ready)
	f.reports("b", ready, func(i *longhornv1.BackingImageV2CopyInfo) { i.CurrentChecksum = strings.Repeat("c", 128) })
	p := f.decide()
	if p.status.Checksum != sum {
		t.Errorf("the checksum is that of a copy that is being deleted: %s", p.status.Checksum)
	}
	f.image.Status, f.managers["a"].Status.BackingImages = p.status, nil
	f.wants("b")
	if s := f.decide().status; s.Checksum != sum || s.PiecesChecksum != pieceSum || s.Size != 1_000_001 {
		t.Errorf("status %+v", s)
	}
}
