package backingimage

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/event"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/errclass"
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

func TestOptions_flags(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"": "",
		"--image-recovery-wait=1m --image-cleanup-wait=2h --image-source-deadline=48h --image-parallel-copies=100": "",
		"--image-recovery-wait=59s":   "--image-recovery-wait is 59s: use 1m0s or more, or 0 for the default",
		"--image-cleanup-wait=-1h":    "--image-cleanup-wait is -1h0m0s",
		"--image-source-deadline=1ns": "--image-source-deadline is 1ns",
		"--image-parallel-copies=101": "--image-parallel-copies is 101: use 1 to 100, or 0 for the default",
		"--image-parallel-copies=-1":  "--image-parallel-copies is -1",
	} {
		var o Options
		f := pflag.NewFlagSet("controller", pflag.ContinueOnError)
		o.AddFlags(f)
		if err := f.Parse(strings.Fields(args)); err != nil {
			t.Errorf("%s: %v", args, err)
		}
		err := o.Validate()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want) ||
			errclass.Of(err) != errclass.Invalid) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
		if strings.Count(args, " ") == 3 && (o.GiveUpUnknown != time.Minute || o.RemoveUnused != 2*time.Hour ||
			o.SourceDeadline != 48*time.Hour || o.ParallelCopies != 100) {
			t.Errorf("%+v", o)
		}
	}
}
