package backingimage

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
)

func TestCopies(t *testing.T) {
	t.Parallel()
	const running, starting = longhornv1.ReplicaRunning, longhornv1.ReplicaStarting
	minimum := func(f *fixture, n int) { f.image.Spec.MinNumberOfCopies = n }
	evict := func(f *fixture, node string) { f.image.Spec.DiskFileSpecMap["disk-"+node].EvictionRequested = true }
	evictDisk := func(f *fixture, node string) {
		f.nodes[node].Spec.Disks["default-disk"] = longhornv1.DiskSpec{AllowScheduling: true, EvictionRequested: true}
	}
	unused := func(f *fixture, node string, since time.Duration) {
		if f.image.Status.DiskLastRefAtMap == nil {
			f.image.Status.DiskLastRefAtMap = map[string]string{}
		}
		f.image.Status.DiskLastRefAtMap["disk-"+node] = now.Add(-since).Format(time.RFC3339)
	}
	retried := func(f *fixture, since time.Duration) {
		f.was("b", failed, since)
		f.image.Status.DiskFileStatusMap["disk-b"].RetrySpec = &longhornv1.BackingImageDiskFileSpec{DataEngine: "v2"}
	}
	const lost = longhornv1.ReasonNoReadyCopy
	for name, c := range map[string]struct {
		edit          func(*fixture)
		disks, states string
		reason, words string
	}{
		"enough":         {func(*fixture) {}, "a", "a ready", "", ""},
		"one is missing": {func(f *fixture) { minimum(f, 2) }, "a b", "a ready, b pending", "", ""},
		"two are missing, one is made": {func(f *fixture) {
			minimum(f, 3)
		}, "a b", "a ready, b pending", "", ""},
		"the next one waits": {func(f *fixture) {
			minimum(f, 3)
			f.wants("b")
			f.reports("b", inProgress)
		}, "a b", "a ready, b in-progress", "", "2 of 3 copies that stay: the next one is made when the present one is ready"},
		"no disk for another one": {func(f *fixture) {
			minimum(f, 4)
			f.isReady("a", "b", "c")
		}, "a b c", "a ready, b ready, c ready", "", "3 of 4 copies that stay: every disk has a copy"},
		"one that is unknown counts": {func(f *fixture) {
			minimum(f, 2)
			f.isReady("a", "b")
			f.silent("b")
		}, "a b", "a ready, b unknown", "", ""},

		"one whose node is gone is replaced": {func(f *fixture) {
			minimum(f, 2)
			f.isReady("a", "b")
			f.silent("b")
			delete(f.nodes, "b") // as the message about a deletion says
		}, "a c", "a ready, b unknown, c pending", "", ""},
		"one that has not begun for long gets another disk": {func(f *fixture) {
			minimum(f, 2)
			f.wants("b")
			f.was("b", pending, 6*time.Minute)
			f.reports("b", pending, func(i *longhornv1.BackingImageV2CopyInfo) { i.Message = "too little free space" })
		}, "a c", "a ready, b pending, c pending", "", ""},
		"one that a user keeps counts": {func(f *fixture) {
			minimum(f, 2)
			f.isReady("a", "b")
			f.image.Spec.DiskFileSpecMap["disk-b"].Keep = true
		}, "a b", "a ready, b ready", "", ""},
		"an evicted copy goes when one is ready that a user keeps": {func(f *fixture) {
			f.isReady("a", "b")
			f.image.Spec.DiskFileSpecMap["disk-b"].Keep = true
			evict(f, "a")
		}, "b", "a ready, b ready", "", "copies are ready on disk default-disk of node b"},
		"an evicted disk is left when a copy is ready that a user keeps": {func(f *fixture) {
			f.isReady("a", "b")
			f.image.Spec.DiskFileSpecMap["disk-b"].Keep = true
			evictDisk(f, "a")
		}, "b", "a ready, b ready", "", ""},
		"one that a user keeps is enough": {func(f *fixture) { // as after an image was moved
			delete(f.image.Spec.DiskFileSpecMap, "disk-a")
			clear(f.managers["a"].Status.BackingImages)
			f.isReady("b")
			f.image.Status.V2FirstCopyDisk = "disk-a"
			delete(f.image.Status.DiskFileStatusMap, "disk-a")
			f.image.Spec.DiskFileSpecMap["disk-b"].Keep = true
		}, "b", "b ready", "", ""},
		"one that a user keeps replaces none": {func(f *fixture) {
			f.isReady("a", "b")
			f.image.Spec.DiskFileSpecMap["disk-b"].Keep = true
			unused(f, "a", 2*time.Hour)
			unused(f, "b", 2*time.Hour)
		}, "a b", "a ready, b ready", "", ""},

		"a replica gets a copy at once": {func(f *fixture) {
			minimum(f, 2)
			f.wants("b")
			f.reports("b", inProgress)
			f.hasReplica("c", starting)
		}, "a b c", "a ready, b in-progress, c pending", "", ""},
		"a replica waits for the first copy": {func(f *fixture) {
			f.begun("a", inProgress)
			f.image.Status.Checksum = ""
			f.reports("a", inProgress)
			f.hasReplica("c", starting)
		}, "a", "a in-progress", longhornv1.ReasonFirstCopyInProgress, ""},

		"an evicted copy is replaced first": {
			func(f *fixture) { evict(f, "a") }, "a b", "a ready, b pending", "",
			"the copy on disk default-disk of node a stays until there are enough others",
		},
		"an evicted disk is left": {func(f *fixture) {
			f.isReady("a", "b")
			evictDisk(f, "a")
		}, "b", "a ready, b ready", "", "copies are ready on disk default-disk of node b"},
		"an evicted copy stays until there are enough others": {func(f *fixture) {
			minimum(f, 2)
			f.isReady("a", "b")
			evict(f, "b")
		}, "a b c", "a ready, b ready, c pending", "", ""},
		"an evicted copy that a replica uses": {func(f *fixture) {
			f.isReady("a", "b")
			evict(f, "a")
			f.hasReplica("a", running)
		}, "a b", "a ready, b ready", "", "node a stays, because volumes on the disk are clones of it"},
		"the last copy is never evicted": {func(f *fixture) {
			f.isReady("a", "b", "c")
			for _, node := range []string{"a", "b", "c"} {
				evict(f, node)
			}
		}, "a b c", "a ready, b ready, c ready", "", "0 of 1 copies that stay: every disk has a copy"},
		"the last ready copy is never evicted": {func(f *fixture) {
			f.isReady("a", "b")
			evict(f, "a")
			f.silent("b")
		}, "a b", "a ready, b unknown", "", "stays until there are enough others"},

		"a failed copy goes": {func(f *fixture) {
			f.wants("b")
			f.reports("b", failed)
		}, "a", "a ready, b failed", "", ""},
		"a failed copy whose clones are in use stays": {func(f *fixture) {
			f.isReady("a", "b")
			f.reports("b", failed)
			f.hasReplica("b", running)
		}, "a b", "a ready, b failed", "", ""},
		"a failed copy for which a replica waits goes": {func(f *fixture) {
			f.wants("b")
			f.reports("b", failed)
			f.hasReplica("b", starting)
		}, "a", "a ready, b failed", "", ""},
		"a failed copy stays away for a while": {func(f *fixture) {
			retried(f, 4*time.Minute)
			f.hasReplica("b", starting)
		}, "a", "a ready, b failed", "", ""},
		"a failed copy is made again": {func(f *fixture) {
			retried(f, 5*time.Minute)
		}, "a b", "a ready, b pending", "", ""},
		"a failed copy is still there": {func(f *fixture) {
			retried(f, 5*time.Minute)
			f.reports("b", failed)
		}, "a", "a ready, b failed", "", ""},
		"a failed copy's disk is gone": {func(f *fixture) {
			retried(f, 5*time.Minute)
			delete(f.nodes, "b")
		}, "a", "a ready", "", ""},
		"a failed copy that a user removed does not come back": {func(f *fixture) {
			f.was("b", failed, 5*time.Minute)
		}, "a", "a ready", "", ""},
		"a failed copy that has another checksum is still there": {func(f *fixture) {
			retried(f, time.Minute)
			f.reports("b", ready, func(i *longhornv1.BackingImageV2CopyInfo) { i.CurrentChecksum = strings.Repeat("c", 128) })
		}, "a", "a ready, b failed", "", ""},
		"the last copy failed": {func(f *fixture) {
			f.reports("a", failed, func(i *longhornv1.BackingImageV2CopyInfo) { i.Message = "a bit has changed" })
		}, "a", "a failed", lost, "node a: failed (a bit has changed)"},
		"a copy with another checksum": {func(f *fixture) {
			f.wants("b")
			f.reports("b", ready, func(i *longhornv1.BackingImageV2CopyInfo) { i.CurrentChecksum = strings.Repeat("c", 128) })
		}, "a", "a ready, b failed", "", ""},

		"a copy that nothing uses": {func(f *fixture) {
			f.isReady("a", "b")
			unused(f, "a", time.Minute)
			unused(f, "b", time.Hour)
		}, "a", "a ready, b ready", "", ""},
		"a copy that nothing has used for a while": {func(f *fixture) {
			f.isReady("a", "b")
			unused(f, "b", 59*time.Minute)
		}, "a b", "a ready, b ready", "", ""},
		"a copy that a replica uses": {func(f *fixture) {
			f.isReady("a", "b")
			unused(f, "a", time.Hour)
			unused(f, "b", 2*time.Hour)
			f.hasReplica("b", longhornv1.ReplicaStopped)
		}, "b", "a ready, b ready", "", ""},
		"no more than there must be": {func(f *fixture) {
			minimum(f, 2)
			f.isReady("a", "b")
			unused(f, "b", 2*time.Hour)
		}, "a b", "a ready, b ready", "", ""},
		"one that is unknown is no reason to remove another one": {func(f *fixture) {
			f.isReady("a", "b")
			f.silent("b")
			unused(f, "a", 2*time.Hour)
		}, "a b", "a ready, b unknown", "", ""},

		"nothing reports": {func(f *fixture) {
			for node := range f.nodes {
				f.silent(node)
			}
			evict(f, "a")
			unused(f, "a", 2*time.Hour)
		}, "a", "a unknown", lost, "no copy is ready: bring back a node or a disk that has one"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture()
			f.isReady("a")
			c.edit(f)
			want := outcome{first: ready, disk: "a", disks: c.disks, states: c.states, reason: c.reason}
			if want.reason == "" {
				want.reason = longhornv1.ReasonImageReady
			}
			if want.reason == longhornv1.ReasonFirstCopyInProgress {
				want.first, want.source = inProgress, makeSource
			}
			want.compare(t, f.decide(), c.words)
		})
	}
}

// The time at which a copy was used last begins when its last replica goes.
func TestCopies_lastUse(t *testing.T) {
	t.Parallel()
	f := newFixture()
	f.isReady("a", "b")
	f.hasReplica("a", longhornv1.ReplicaRunning)
	f.image.Status.DiskLastRefAtMap = map[string]string{
		"disk-a": "2026-11-30T08:30:00Z", "disk-b": "2026-11-30T08:40:00Z", "disk-c": "2026-11-30T08:50:00Z",
	}
	p := f.decide()
	if got := p.status.DiskLastRefAtMap; !maps.Equal(got, map[string]string{"disk-b": "2026-11-30T08:40:00Z"}) {
		t.Errorf("last used: %v", got)
	}
	f.replicas, f.image.Status.DiskLastRefAtMap = nil, p.status.DiskLastRefAtMap
	if got := f.decide().status.DiskLastRefAtMap["disk-a"]; got != "2026-11-30T09:00:00Z" {
		t.Errorf("disk-a was used last at %q", got)
	}
}

// A copy that fails is made again with what a user wants of it. One that was evicted is not.
func TestCopies_afterAFailure(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spec *longhornv1.BackingImageDiskFileSpec
		want *longhornv1.BackingImageDiskFileSpec // after five minutes
	}{
		"none": {nil, &longhornv1.BackingImageDiskFileSpec{DataEngine: "v2"}},
		"kept": {
			&longhornv1.BackingImageDiskFileSpec{Keep: true},
			&longhornv1.BackingImageDiskFileSpec{DataEngine: "v2", Keep: true},
		},
		"evicted": {&longhornv1.BackingImageDiskFileSpec{EvictionRequested: true}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture()
			f.isReady("a")
			f.image.Spec.DiskFileSpecMap["disk-b"] = c.spec
			f.reports("b", failed)
			for range 2 {
				p := f.decide()
				f.image.Status, f.image.Spec.DiskFileSpecMap = p.status, p.disks
				if _, ok := p.disks["disk-b"]; ok {
					t.Fatal("the copy that failed stays")
				}
			}
			clear(f.managers["b"].Status.BackingImages) // the store has deleted it
			in := f.input()
			in.now = now.Add(retryCopyAfter)
			p := decide(in)
			if diff := cmp.Diff(c.want, p.disks["disk-b"]); diff != "" {
				t.Error(diff)
			}
			if s := p.status.DiskFileStatusMap["disk-b"]; (s != nil) != (c.want != nil) || s != nil && s.RetrySpec != nil {
				t.Errorf("status %+v", s)
			}
		})
	}
}

// Several copies are made at a time if the controller is told so.
func TestCopies_parallel(t *testing.T) {
	t.Parallel()
	f := newFixture()
	f.isReady("a")
	f.image.Spec.MinNumberOfCopies = 3
	f.wants("b")
	f.reports("b", inProgress)
	in := f.input()
	in.ParallelCopies = 2
	outcome{
		first: ready, disk: "a", disks: "a b c", states: "a ready, b in-progress, c pending",
		reason: longhornv1.ReasonImageReady,
	}.compare(t, decide(in), "")
}
