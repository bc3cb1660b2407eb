package backingimage

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
)

// Each thing that happens to an image is an event once.
func TestListEvents(t *testing.T) {
	t.Parallel()
	makeReady := func(f *fixture) {
		f.isReady("a")
		f.image.Status = f.decide().status
	}
	for name, c := range map[string]struct {
		edit func(*fixture)
		want []string
	}{
		"nothing": {makeReady, nil},
		"the first copy is ready": {
			func(f *fixture) {
				f.begun("a", inProgress)
				f.reports("a", ready)
			},
			[]string{"Normal Ready copies are ready on disk default-disk of node a"},
		},
		"the first copy fails": {
			func(f *fixture) {
				f.begun("a", inProgress)
				f.reports("a", inProgress)
				f.hasPod(corev1.PodFailed, "Invalid: a web page")
			},
			[]string{"Warning FirstCopyFailed Invalid: a web page"},
		},
		"the first copy fails on its disk": {
			func(f *fixture) {
				f.begun("a", inProgress)
				f.reports("a", failed, func(i *longhornv1.BackingImageV2CopyInfo) { i.Message = "the disk is full" })
			},
			[]string{"Warning FirstCopyFailed disk default-disk of node a: the disk is full"},
		},
		"another copy fails": {
			func(f *fixture) {
				makeReady(f)
				f.wants("b")
				f.was("b", inProgress, time.Hour)
				f.reports("b", failed, func(i *longhornv1.BackingImageV2CopyInfo) { i.Message = "the disk is full" })
			},
			[]string{"Warning CopyFailed disk default-disk of node b: the disk is full"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture()
			c.edit(f)
			var all [][]string
			for range 2 {
				recorder := events.NewFakeRecorder(10)
				in := f.input()
				p := decide(in)
				recordEvents(recorder, f.image, in.listEvents(&f.image.Status, &p.status))
				close(recorder.Events)
				var got []string
				for e := range recorder.Events {
					got = append(got, e)
				}
				all = append(all, got)
				f.image.Status, f.image.Spec.DiskFileSpecMap = p.status, p.disks
			}
			if diff := cmp.Diff([][]string{c.want, nil}, all); diff != "" {
				t.Error(diff)
			}
		})
	}
}
