package backingimage

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
)

// The first copy is made where what it is made of is, or else the image says what has to happen.
func TestFirstCopy_ofWhatADiskHas(t *testing.T) {
	t.Parallel()
	type copies = map[string]longhornv1.BackingImageState
	const making = longhornv1.ReasonFirstCopyInProgress
	on := func(node string) outcome {
		return outcome{first: inProgress, disk: node, disks: node, states: node + " pending", reason: making}
	}
	waits := outcome{first: pending, reason: longhornv1.ReasonSourceNotReady}
	without := outcome{first: pending, reason: longhornv1.ReasonNoDisk}
	for name, c := range map[string]struct {
		edit  func(*fixture)
		want  outcome
		words string
	}{
		"a clone, where the image is": {
			func(f *fixture) { f.clones(copies{"b": ready, "a": inProgress}) }, on("b"), "node b gets the first copy",
		},
		"a clone, not where the image goes": {func(f *fixture) {
			f.clones(copies{"a": ready, "b": ready})
			delete(f.origin.image.Spec.DiskFileSpecMap, "disk-a")
		}, on("b"), ""},
		"a clone, where the tags are": {func(f *fixture) {
			f.clones(copies{"a": ready, "c": ready})
			f.image.Spec.NodeSelector = []string{"rack-1"}
			f.nodes["c"].Spec.Tags = []string{"rack-1"}
		}, on("c"), ""},
		"a clone, where the user wants it if that has the image": {func(f *fixture) {
			f.clones(copies{"a": ready, "c": ready})
			f.wants("c")
		}, on("c"), ""},
		"a clone without a disk that fits": {func(f *fixture) {
			f.clones(copies{"b": ready})
			f.closeDisk("b", longhornv1.ReasonDiskPressure, "it is full")
		}, without, "no disk fits: disk default-disk of node b is not ready (it is full)"},
		"a clone on a disk that is gone": {func(f *fixture) {
			f.clones(copies{"b": ready})
			delete(f.nodes, "b")
		}, without, "no Node lists a disk that has the image base"},
		"a clone of nothing": {func(f *fixture) {
			f.clones(nil)
			f.origin.image = nil
		}, waits, "the image base, which sourceParameters.backing-image names, does not exist in namespace varve: create it"},
		"a clone of itself": {func(f *fixture) {
			f.clones(copies{"a": ready})
			f.image.Spec.SourceParameters[longhornv1.ParameterBackingImage] = "ubuntu-22.04"
		}, waits, "names the image itself"},
		"a clone of what goes": {func(f *fixture) {
			f.clones(copies{"a": ready})
			f.origin.image.DeletionTimestamp = &metav1.Time{Time: now}
		}, waits, "is being deleted"},
		"a clone of what is not ready": {
			func(f *fixture) { f.clones(copies{"a": failed, "b": unknown}) }, waits, "has no copy that is ready",
		},
		"a clone after a failure": {func(f *fixture) {
			f.clones(nil)
			f.image.Status.FirstCopyMessage, f.image.Status.FirstCopyAttempts = "it was deleted", 2
		}, waits, "has no copy that is ready: look at its condition Ready; attempt 2 failed: it was deleted"},
		"a volume, on its disk": {
			func(f *fixture) { f.exports("c", longhornv1.VolumeDetached) }, on("c"), "node c gets the first copy",
		},
		"a volume without the tags": {func(f *fixture) {
			f.exports("c", longhornv1.VolumeDetached)
			f.image.Spec.DiskSelector = []string{"fast"}
		}, without, "node c does not have all tags"},
		"a volume of a silent store": {func(f *fixture) {
			f.exports("c", longhornv1.VolumeDetached)
			f.silent("c")
		}, without, "node c has no store that reports"},
		"an attached volume": {
			func(f *fixture) { f.exports("c", longhornv1.VolumeAttached) }, waits,
			"the volume pvc-1 is attached to node c: stop what uses it",
		},
		"a volume that is being made": {
			func(f *fixture) { f.exports("c", longhornv1.VolumeCreating) }, waits, "the volume pvc-1 is not made yet",
		},
		"a volume that nobody has seen": {
			func(f *fixture) { f.exports("c", "") }, waits, "the volume pvc-1 is not made yet",
		},
		"a volume without a replica": {func(f *fixture) {
			f.exports("c", longhornv1.VolumeDetached)
			f.origin.replica = nil
		}, waits, "the volume pvc-1 is not made yet"},
		"a volume that goes": {
			func(f *fixture) { f.exports("c", longhornv1.VolumeDeleting) }, waits, "the volume pvc-1 is being deleted",
		},
		"a volume without data": {func(f *fixture) {
			f.exports("c", longhornv1.VolumeDetached)
			f.origin.volume.Status.Robustness = longhornv1.RobustnessFaulted
			f.origin.replica.Status.Message = "the disk does not have it"
		}, waits, "has no data that can be used (the disk does not have it): restore it from a backup"},
		"no volume": {func(f *fixture) {
			f.exports("c", longhornv1.VolumeDetached)
			f.origin.volume, f.origin.replica = nil, nil
		}, waits, "the volume pvc-1, which sourceParameters.volume-name names, does not exist"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture()
			c.edit(f)
			p := f.decide()
			c.want.compare(t, p, c.words)
			if c.want.first == pending && p.next != pollDisks {
				t.Errorf("it looks again after %s", p.next)
			}
		})
	}
}

// A store makes the first copy without a pod, waits as long as somebody uses the volume, and may fail.
func TestFirstCopy_localIsFollowed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		state   longhornv1.BackingImageState
		message string
		want    outcome
		words   string
	}{
		"made": {
			inProgress, "what the volume had is being read back",
			outcome{
				first: inProgress, disk: "a", disks: "a", states: "a in-progress",
				reason: longhornv1.ReasonFirstCopyInProgress,
			},
			"node a: the first copy is made of the volume pvc-1: what the volume had is being read back",
		},
		"failed": {
			failed, "the disk does not have the volume pvc-1: it was deleted",
			outcome{first: failed, disk: "a", states: "a failed", reason: longhornv1.ReasonFirstCopyFailed},
			"attempt 1 failed: disk default-disk of node a: the disk does not have the volume pvc-1: it was deleted",
		},
		"ready": {
			ready, "",
			outcome{first: ready, disk: "a", disks: "a", states: "a ready", reason: longhornv1.ReasonImageReady},
			"",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture()
			f.exports("a", longhornv1.VolumeAttached) // by somebody since
			f.begun("a", inProgress)
			f.reports("a", c.state, func(i *longhornv1.BackingImageV2CopyInfo) { i.Message = c.message })
			c.want.compare(t, f.decide(), c.words)
		})
	}
}
