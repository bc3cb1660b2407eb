package backingimage

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
)

func TestDeletion(t *testing.T) {
	t.Parallel()
	const gone, leaving, used = "", longhornv1.ReasonDeleting, longhornv1.ReasonInUse
	empty := func(f *fixture, nodes ...string) {
		for _, node := range nodes {
			f.managers[node].Status.BackingImages = nil
			f.reportedSince[node] = true
		}
	}
	for name, c := range map[string]struct {
		edit          func(*fixture)
		source        sourceAction
		reason, words string
	}{
		"clones": {func(f *fixture) {
			empty(f, "a", "b")
			f.hasPod(corev1.PodRunning, "")
			for i := range 12 {
				f.volumes = append(f.volumes, fmt.Sprintf("pvc-%02d", i))
			}
		}, keepSource, used, "until these volumes, which are clones of it, are deleted: pvc-00, pvc-01, pvc-02, pvc-03, " +
			"pvc-04, pvc-05, pvc-06, pvc-07, pvc-08, pvc-09 and 2 more"},
		"copies": {
			func(*fixture) {}, keepSource, leaving,
			"disk default-disk of node a has a copy, disk default-disk of node b has a copy",
		},
		"a copy that stays": {func(f *fixture) {
			empty(f, "a")
			f.reports("b", ready, func(i *longhornv1.BackingImageV2CopyInfo) { i.Message = "volume pvc-1 is a clone" })
		}, keepSource, leaving, "deleted: disk default-disk of node b has a copy (volume pvc-1 is a clone)"},
		"a report from before": {func(f *fixture) {
			empty(f, "a", "b")
			f.reportedSince["b"] = false
		}, keepSource, leaving, "deleted: the store of node b has not reported since"},
		"a store that is silent": {func(f *fixture) {
			empty(f, "a")
			f.silent("b")
		}, keepSource, leaving, "disk default-disk of node b may have a copy, and the store of node b reported last at " +
			"2026-11-30T08:56:00Z: is varve store running there? (if the node is gone for good, delete its Node in the group " +
			"longhorn.io)"},
		"a store that never was": {func(f *fixture) {
			empty(f, "a")
			delete(f.managers, "b")
		}, keepSource, leaving, "node b may have a copy, and the store of node b has never reported"},
		"a disk that is not mounted": {func(f *fixture) {
			empty(f, "a", "b")
			f.closeDisk("b", longhornv1.ReasonDiskUnusable, "it is not mounted")
		}, keepSource, leaving, "node b may have a copy, and disk default-disk of node b cannot be used: it is not mounted"},
		"a copy that is out of the spec, and unknown": {func(f *fixture) {
			empty(f, "a", "b")
			f.was("c", unknown, time.Hour)
			f.silent("c")
		}, keepSource, leaving, "deleted: disk default-disk of node c may have a copy"},
		"a copy on a disk that nothing has listed": {func(f *fixture) {
			empty(f, "a", "b")
			f.reports("c", ready)
		}, keepSource, leaving, "deleted: disk default-disk of node c has a copy"},
		"a node that is gone for good": {func(f *fixture) {
			empty(f, "a")
			delete(f.managers, "b")
			delete(f.nodes, "b")
		}, keepSource, gone, ""},
		"a source": {func(f *fixture) {
			empty(f, "a", "b")
			f.hasPod(corev1.PodRunning, "")
		}, removeSource, leaving, ""},
		"nothing is left": {func(f *fixture) { empty(f, "a", "b") }, keepSource, gone, ""},
		"it never had a UUID": {func(f *fixture) {
			f.image.Status = longhornv1.BackingImageStatus{}
		}, keepSource, gone, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture()
			f.isReady("a", "b")
			f.image.DeletionTimestamp = ptr.To(metav1.NewTime(now.Add(-5 * time.Second)))
			c.edit(f)
			p := f.decide()
			if p.finalizer != (c.reason != gone) || p.source != c.source {
				t.Errorf("finalizer %t, source %q", p.finalizer, p.source)
			}
			if len(p.disks) != len(f.image.Spec.DiskFileSpecMap) {
				t.Errorf("the spec changes: %v", p.disks)
			}
			if c.reason == gone {
				return
			}
			condition := p.status.Conditions[0]
			p.status.DiskFileStatusMap, p.disks, p.source = nil, nil, keepSource
			outcome{first: ready, disk: "a", reason: c.reason}.compare(t, p, c.words)
			if p.next == 0 && condition.Reason != used {
				t.Error("nobody looks again")
			}
		})
	}
}
