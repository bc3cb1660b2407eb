package backingimage

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/event"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
)

// A heartbeat alone is no reason to look at an image, and a report about one image is none to look at another one.
func TestSetup_reports(t *testing.T) {
	t.Parallel()
	f := newFixture()
	f.reports("a", inProgress)
	before := f.managers["a"].DeepCopy()
	other := longhornv1.BackingImageV2CopyInfo{Name: "debian", UUID: "d", DiskUUID: "disk-a", State: ready}
	before.Status.BackingImages["disk-a/d"] = other
	for name, c := range map[string]struct {
		edit   func(*longhornv1.InstanceManagerStatus)
		want   string
		silent bool
	}{
		"a heartbeat": {func(s *longhornv1.InstanceManagerStatus) {
			s.HeartbeatTime = ptr.To(metav1.NewMicroTime(now))
		}, "", false},
		"progress": {func(s *longhornv1.InstanceManagerStatus) {
			info := s.BackingImages["disk-a/u"]
			info.Progress = 7
			s.BackingImages["disk-a/u"] = info
		}, "ubuntu-22.04", false},
		"a copy that is gone": {func(s *longhornv1.InstanceManagerStatus) {
			delete(s.BackingImages, "disk-a/d")
		}, "debian", false},
		"a new copy": {func(s *longhornv1.InstanceManagerStatus) {
			s.BackingImages["disk-a/f"] = longhornv1.BackingImageV2CopyInfo{Name: "fedora"}
		}, "fedora", false},
		"a clock that is set": {func(s *longhornv1.InstanceManagerStatus) {
			s.HeartbeatTime = ptr.To(metav1.NewMicroTime(now.Add(longhornv1.ReportTimeout)))
		}, "", false},
		"silence": {func(s *longhornv1.InstanceManagerStatus) { s.CurrentState = longhornv1.ManagerUnknown }, "", true},
	} {
		after := before.DeepCopy()
		c.edit(&after.Status)
		got := strings.Join(slices.Sorted(maps.Keys(changedImages(before, after))), " ")
		if got != c.want || fallsSilent(before, after) != c.silent {
			t.Errorf("%s: %q, silent %t", name, got, fallsSilent(before, after))
		}
	}
}

// Space that is taken or freed is no reason to look at all images.
func TestSetup_disks(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		edit func(*longhornv1.Node)
		want bool
	}{
		"space": {func(n *longhornv1.Node) { n.Status.DiskStatus["default-disk"].StorageAvailable = 7 }, false},
		"a condition": {func(n *longhornv1.Node) {
			n.Status.DiskStatus["default-disk"].Conditions[0].Status = metav1.ConditionFalse
		}, true},
		"a UUID":      {func(n *longhornv1.Node) { n.Status.DiskStatus["default-disk"].DiskUUID = "another" }, true},
		"a disk less": {func(n *longhornv1.Node) { delete(n.Status.DiskStatus, "default-disk") }, true},
		"the spec":    {func(n *longhornv1.Node) { n.Generation++ }, true},
	} {
		before := newFixture().nodes["a"]
		after := before.DeepCopy()
		c.edit(after)
		if got := changesDisks().Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after}); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestOptions_defaults(t *testing.T) {
	t.Parallel()
	o := Options{RemoveUnused: time.Minute}.withDefaults()
	if o.GiveUpUnknown != 5*time.Minute || o.RemoveUnused != time.Minute || o.SourceDeadline != 24*time.Hour ||
		o.ParallelCopies != 1 || o.Clock == nil {
		t.Errorf("%+v", o)
	}
}
