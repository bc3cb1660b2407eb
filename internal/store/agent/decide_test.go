package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/handover"
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// decided is what a test expects: words have to be in the message.
type decided struct {
	action   action
	state    longhornv1.BackingImageState
	progress int
	words    string
}

func TestDecide(t *testing.T) {
	t.Parallel()
	image := func(edit func(*longhornv1.BackingImageStatus)) *longhornv1.BackingImage {
		i := &longhornv1.BackingImage{ObjectMeta: metav1.ObjectMeta{Name: "ubuntu-22.04"}}
		i.Status = longhornv1.BackingImageStatus{UUID: "i-1", FirstCopyAttempts: 2}
		edit(&i.Status)
		return i
	}
	first := image(func(s *longhornv1.BackingImageStatus) {
		s.V2FirstCopyDisk, s.V2FirstCopyStatus = "d-1", longhornv1.StateInProgress
	})
	elsewhere := image(func(s *longhornv1.BackingImageStatus) {
		s.V2FirstCopyDisk, s.V2FirstCopyStatus, s.Checksum = "d-2", longhornv1.StateReady, "ab"
		s.RealSize = 4096
		s.DiskFileStatusMap = map[string]*longhornv1.BackingImageDiskFileStatus{
			"d-2": {State: longhornv1.StateReady}, "d-3": nil,
		}
	})
	unknown := image(func(s *longhornv1.BackingImageStatus) {
		s.DiskFileStatusMap = map[string]*longhornv1.BackingImageDiskFileStatus{"d-2": {State: longhornv1.StateUnknown}}
	})
	onlyHere := image(func(s *longhornv1.BackingImageStatus) {
		s.DiskFileStatusMap = map[string]*longhornv1.BackingImageDiskFileStatus{"d-1": {State: longhornv1.StateReady}}
	})
	unverified := elsewhere.DeepCopy()
	unverified.Status.Checksum = ""
	ready := &disk.Object{UID: "i-1", State: disk.StateReady}
	head := &disk.Object{State: disk.StateWritable}
	damaged := &disk.Object{UID: "i-1", State: disk.StateDamaged}
	base := &disk.Object{UID: "b-1", State: disk.StateReady}
	cloned := &disk.Object{Parent: "b-1", State: disk.StateWritable}
	clone, export, cloneElsewhere := first.DeepCopy(), first.DeepCopy(), elsewhere.DeepCopy()
	clone.Spec.SourceType, export.Spec.SourceType = longhornv1.SourceClone, longhornv1.SourceExport
	cloneElsewhere.Spec.SourceType = longhornv1.SourceClone
	complete := handover.Record{Bytes: 5, Complete: true}
	const inProgress, isPending, hasFailed = longhornv1.StateInProgress, longhornv1.StatePending, longhornv1.StateFailed
	for name, x := range map[string]struct {
		view view
		want decided
	}{
		"ready": {view{image: first, copy: ready}, decided{"", longhornv1.StateReady, 100, ""}},
		"ready, with heads": {
			view{image: first, copy: ready, source: head},
			decided{actionDeleteHeads, longhornv1.StateReady, 100, ""},
		},
		"ready, with a copy": {
			view{image: first, copy: ready, making: head},
			decided{actionDeleteHeads, longhornv1.StateReady, 100, ""},
		},
		"damaged, and repaired soon": {
			view{image: elsewhere, copy: damaged, mayRepair: true},
			decided{"", inProgress, 99, "repaired from another one"},
		},
		"damaged":         {view{image: elsewhere, copy: damaged}, decided{"", hasFailed, 0, "add it again"}},
		"first":           {view{image: first}, decided{actionCreateSource, inProgress, 0, ""}},
		"first, no space": {view{image: first, free: -1}, decided{"", isPending, 0, "storageReserved"}},
		"first, no space now": {
			view{image: first, free: -1, source: head}, decided{actionGiveUp, hasFailed, 0, "storageReserved"},
		},
		"first, no space, written": {
			view{image: first, free: -1, source: head, sourceUsers: 1, record: handover.Record{Done: 1, Total: 2}},
			decided{actionGiveUp, hasFailed, 0, "storageReserved"},
		},
		"first, no space, complete": {
			view{image: first, free: -1, source: head, record: complete}, decided{actionSeal, inProgress, 99, ""},
		},
		"first, gave up": {
			view{image: first, source: head, state: &copyState{failure: "no", failedFirst: true, firstAttempt: 2, gaveUp: true}},
			decided{actionDeleteHeads, hasFailed, 0, "no"},
		},
		"first, written": {
			view{image: first, source: head, sourceUsers: 1, record: handover.Record{Done: 1, Total: 2}},
			decided{"", inProgress, 50, ""},
		},
		"first, interrupted": {
			view{image: first, source: head, record: handover.Record{Done: 1, Total: 2}}, decided{"", inProgress, 50, ""},
		},
		"first, attached": {
			view{image: first, source: head, sourceUsers: 1, record: complete}, decided{"", inProgress, 99, "detached"},
		},
		"first, complete": {
			view{image: first, source: head, record: complete},
			decided{actionSeal, inProgress, 99, ""},
		},
		"first, nobody uploads it": {
			view{image: first, source: head, sourceUsers: 1, record: handover.Record{Done: 1, Total: 2, Waits: true}},
			decided{"", inProgress, 50, "it waits for `varve image upload ubuntu-22.04 FILE`"},
		},
		"first, the source that waited is gone": {
			view{image: first, source: head, record: handover.Record{Done: 1, Total: 2, Waits: true}},
			decided{"", inProgress, 50, ""},
		},
		"first, record being written": {
			view{image: first, source: head, sourceUsers: 1, recordErr: errclass.Corrupt, state: &copyState{progress: 7}},
			decided{"", inProgress, 7, "corrupt"},
		},
		"first, bad record": {
			view{image: first, source: head, recordErr: errclass.Corrupt},
			decided{"", hasFailed, 0, "corrupt"},
		},
		"first, damaged head": {
			view{image: first, source: damaged}, decided{actionDeleteSource, hasFailed, 0, "damaged"},
		},
		"first, failed": {
			view{image: first, source: head, state: &copyState{failure: "no", failedFirst: true, firstAttempt: 2}},
			decided{actionDeleteSource, hasFailed, 0, "no"},
		},
		"first, failed long ago": {
			view{
				image: first, state: &copyState{failure: "no", failedFirst: true, firstAttempt: 2, failedAt: noon.Add(-time.Hour)},
			},
			decided{"", hasFailed, 0, "no"},
		},
		"first, failed before": {
			view{image: first, state: &copyState{failure: "no", failedFirst: true, firstAttempt: 1, failedAt: noon}},
			decided{actionCreateSource, inProgress, 0, ""},
		},
		"first, failed before a restart": {
			view{image: first, state: &copyState{failure: "no", recalled: true, failedAt: noon}},
			decided{"", hasFailed, 0, "no"},
		},
		"clone": {
			view{image: clone, origin: origin{name: "base", uuid: "b-1", object: base}},
			decided{actionCloneImage, inProgress, 0, ""},
		},
		"clone of nothing": {
			view{image: clone, origin: origin{name: "base"}},
			decided{"", hasFailed, 0, "the image base, which is to be cloned, does not exist"},
		},
		"clone of what is elsewhere": {
			view{image: clone, origin: origin{name: "base", uuid: "b-1"}},
			decided{"", hasFailed, 0, "the disk has no ready copy of the image base (b-1)"},
		},
		"clone of another image": {
			view{image: clone, origin: origin{name: "base", uuid: "b-2", object: base}},
			decided{"", hasFailed, 0, "no ready copy of the image base (b-2)"},
		},
		"clone of a damaged image": {
			view{
				image:  clone,
				origin: origin{name: "base", uuid: "b-1", object: &disk.Object{UID: "b-1", State: disk.StateDamaged}},
			},
			decided{"", hasFailed, 0, "no ready copy"},
		},
		"clone, cloned": {
			view{image: clone, source: cloned, origin: origin{name: "base", uuid: "b-1", object: base}},
			decided{actionSealClone, inProgress, 99, ""},
		},
		"clone, cloned of an earlier image": {
			view{image: clone, source: cloned, origin: origin{name: "base", uuid: "b-2", object: base}},
			decided{actionDeleteSource, hasFailed, 0, `made again while it was cloned: its status.uuid was "b-1", and is "b-2"`},
		},
		"clone, damaged": {
			view{image: clone, source: damaged, origin: origin{name: "base", uuid: "b-1", object: base}},
			decided{actionDeleteSource, hasFailed, 0, "the clone is damaged"},
		},
		"clone, further": {view{image: cloneElsewhere}, decided{actionSync, inProgress, 0, ""}},
		"export": {
			view{image: export, origin: origin{name: "pvc-1", object: head}}, decided{actionExport, inProgress, 99, ""},
		},
		"export, attached": {
			view{image: export, origin: origin{name: "pvc-1", object: head, users: 1}},
			decided{"", inProgress, 0, "the volume pvc-1 is attached: stop what uses it"},
		},
		"export of a volume that is too large": {
			view{image: export, origin: origin{name: "pvc-1", object: &disk.Object{
				Name: "volume/pvc-1", Kind: disk.KindHead, State: disk.StateWritable, Bytes: handover.MaxImageBytes + 1,
			}}},
			decided{"", hasFailed, 0, "the volume pvc-1 has 2199023255553 bytes, and an image has at most 2199023255552: " +
				"back up the volume instead"},
		},
		"export of nothing": {
			view{image: export, origin: origin{name: "pvc-1"}},
			decided{"", hasFailed, 0, "the disk does not have the volume pvc-1"},
		},
		"export of a damaged volume": {
			view{image: export, origin: origin{name: "pvc-1", object: damaged}},
			decided{"", hasFailed, 0, "the data of the volume pvc-1 is damaged"},
		},
		"export, closed disk": {
			view{image: export, recordErr: errclass.NotFound, origin: origin{name: "pvc-1", object: head}},
			decided{"", inProgress, 0, "not found"},
		},
		"further":           {view{image: elsewhere}, decided{actionSync, inProgress, 0, ""}},
		"further, no space": {view{image: elsewhere, free: -1}, decided{"", isPending, 0, "storageReserved"}},
		"further, begun": {
			view{image: elsewhere, free: -1, making: head},
			decided{actionGiveUp, hasFailed, 0, "storageReserved"},
		},
		"further, no space now": {
			view{image: elsewhere, free: -1, state: &copyState{job: &job{what: actionSync}}},
			decided{actionGiveUp, hasFailed, 0, "storageReserved"},
		},
		"further, gave up": {
			view{image: elsewhere, making: head, state: &copyState{failure: "no", failedAt: noon, gaveUp: true}},
			decided{actionDeleteHeads, hasFailed, 0, "no"},
		},
		"further, failed, begun": {
			view{image: elsewhere, making: head, state: &copyState{failure: "no", failedAt: noon}},
			decided{"", hasFailed, 0, "no"},
		},
		"further, waits": {
			view{image: elsewhere, state: &copyState{retryAt: noon.Add(1), attempts: 3, lastError: "gone"}},
			decided{"", inProgress, 0, "attempt 3 failed"},
		},
		"further, again": {
			view{image: elsewhere, state: &copyState{retryAt: noon, lastError: "gone"}},
			decided{actionSync, inProgress, 0, "gone"},
		},
		"further, failed": {
			view{image: elsewhere, state: &copyState{failure: "no", failedAt: noon}},
			decided{"", hasFailed, 0, "no"},
		},
		"further, failed 5m": {
			view{image: elsewhere, state: &copyState{failure: "no", failedAt: noon.Add(-failureLasts)}},
			decided{actionSync, inProgress, 0, ""},
		},
		"further, too large": {
			view{image: elsewhere, free: 4096}, decided{"", isPending, 0, "the copy takes 4096 bytes or more"},
		},
		"no checksum yet":  {view{image: unverified}, decided{"", isPending, 0, "status.checksum"}},
		"no copy is ready": {view{image: unknown}, decided{"", isPending, 0, "no other disk"}},
		"the only copy":    {view{image: onlyHere}, decided{"", isPending, 0, "no other disk"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := x.view
			v.diskUUID, v.now = "d-1", noon
			if v.free == 0 {
				v.free = 5000
			}
			if v.state == nil {
				v.state = &copyState{}
			}
			d := decide(v)
			got := decided{d.action, d.state, d.progress, x.want.words}
			diff := cmp.Diff(x.want, got, cmp.AllowUnexported(decided{}))
			if diff != "" || !strings.Contains(d.message, x.want.words) || (x.want.words == "" && d.message != "") {
				t.Errorf("message %q (-want +got):\n%s", d.message, diff)
			}
		})
	}
}

func TestIsUnwanted(t *testing.T) {
	t.Parallel()
	image := func(deleted bool, disks ...string) *longhornv1.BackingImage {
		i := &longhornv1.BackingImage{}
		i.Status.UUID = "i-1"
		i.Spec.DiskFileSpecMap = map[string]*longhornv1.BackingImageDiskFileSpec{}
		for _, d := range disks {
			i.Spec.DiskFileSpecMap[d] = nil
		}
		if deleted {
			i.DeletionTimestamp = &metav1.Time{Time: noon}
		}
		return i
	}
	for name, x := range map[string]struct {
		image *longhornv1.BackingImage
		uuid  string
		want  bool
	}{
		"wanted":           {image(false, "d-1"), "i-1", false},
		"not in the spec":  {image(false, "d-2"), "i-1", true},
		"no disks":         {image(false), "i-1", true},
		"deleted":          {image(true, "d-1"), "i-1", true},
		"another UUID":     {image(true), "i-2", false},
		"no image":         {nil, "i-1", false},
		"image without ID": {&longhornv1.BackingImage{}, "", false},
	} {
		if got := isUnwanted(x.image, x.uuid, "d-1"); got != x.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// Attempts without progress are counted, wait longer and longer, and end in a failure. Progress begins the count again.
func TestFinishJob_countsAttempts(t *testing.T) {
	t.Parallel()
	c := clocktesting.NewFakeClock(noon)
	a := &agent{Options: Options{Clock: c}}
	s := &copyState{}
	finish := func(what action, moved bool, err error) {
		s.job = &job{what: what, done: make(chan struct{}), err: err}
		s.job.moved.Store(moved)
		a.finishJob(s, 4)
		if s.job == nil {
			t.Fatal("a job that runs is over")
		}
		close(s.job.done)
		a.finishJob(s, 4)
		if s.job != nil {
			t.Fatal("a job that has ended runs")
		}
	}
	gone := errors.New("connection refused")
	var waits []time.Duration
	for _, moved := range []bool{false, false, true, false, false, false, false} {
		finish(actionSync, moved, gone)
		waits = append(waits, s.retryAt.Sub(noon))
	}
	second := time.Second
	want := []time.Duration{
		5 * second, 10 * second, 5 * second, 10 * second, 20 * second, 40 * second, time.Time{}.Sub(noon),
	}
	if s.turn != len(waits) { // also after progress, so that a bad copy is not asked again and again
		t.Errorf("turn %d after %d attempts", s.turn, len(waits))
	}
	if diff := cmp.Diff(want, waits); diff != "" || s.failure != gone.Error() || s.failedFirst {
		t.Errorf("%+v\n%s", s, diff)
	}
	*s = copyState{attempts: 3}
	finish(actionSync, false, nil)
	if *s != (copyState{}) {
		t.Errorf("after success: %+v", s)
	}
	// A wrong checksum of a source cannot become right.
	wrong := &disk.ChecksumError{Algorithm: "SHA-256", Found: "0123456789abcdef01", Wanted: "fedcba98765432100"}
	finish(actionSeal, false, wrong)
	if !s.failedFirst || s.firstAttempt != 4 || s.refused != wrong.Wanted ||
		!strings.Contains(s.failure, "0123456789abcdef…") ||
		!strings.Contains(s.failure, "fedcba9876543210…") {
		t.Errorf("%+v", s)
	}
}

// No more jobs than maxJobs run at once.
func TestStartJob_isBounded(t *testing.T) {
	t.Parallel()
	a := newAgent(Options{Clock: clocktesting.NewFakeClock(noon)}, nil, nil)
	gate := make(chan struct{})
	wait := func(context.Context, *job) error {
		<-gate
		return nil
	}
	start := func(what action) bool {
		key := copyKey{"d-1", fmt.Sprint(len(a.copies))}
		return a.startJob(t.Context(), a.stateOf(key), what, wait)
	}
	var got []bool
	for _, what := range []action{actionSync, actionSeal, actionSync, actionCreateSource} {
		got = append(got, start(what))
	}
	close(gate)
	a.jobs.Wait()
	got = append(got, start(actionSync))
	a.jobs.Wait()
	if diff := cmp.Diff([]bool{true, true, false, true, true}, got); diff != "" {
		t.Error(diff)
	}
}
