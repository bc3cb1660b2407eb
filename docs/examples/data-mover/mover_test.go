//go:build controlplane

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/test/controlplane"
)

// A volume goes to the store and comes back, and the backup's deletion removes it. Two movers look on.
func TestMover_movesAVolumeThereAndBack(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start("node-a")
	s.start("node-b")
	du := s.upload(s.snapshot("snap", true), moverName)
	du.Name = "b1-jg9wz"
	phases, takers := s.recordPhases(du)
	s.create(du)
	s.reaches(du, velerov2.PhaseCompleted)
	if diff := cmp.Diff([]velerov2.Phase{"", "Accepted", "Prepared", "InProgress", "Completed"}, phases()); diff != "" {
		t.Errorf("phases: %s", diff)
	}
	if got := takers(); len(got) != 1 {
		t.Errorf("taken by %v", got)
	}
	want := velerov2.Progress{TotalBytes: 10, BytesDone: 10}
	if du.Status.SnapshotID == "" || du.Status.Progress != want || du.Status.Node != du.Status.AcceptedByNode || du.Status.StartTimestamp == nil || du.Status.CompletionTimestamp == nil {
		t.Errorf("status %+v", du.Status)
	}
	if !slices.Contains(du.Finalizers, "test.example/theirs") || du.Labels["velero.io/backup-name"] != "b1" {
		t.Errorf("finalizers %v, labels %v", du.Finalizers, du.Labels)
	}
	s.snapshotIsGone("snap")

	claim := s.claim("data")
	dd := s.download(claim, du.Status.SnapshotID, moverName)
	s.create(dd)
	volume := s.volumeFor(dd)
	if ref := volume.Spec.ClaimRef; ref == nil || ref.UID != claim.UID || ref.Name != claim.Name || ref.Namespace != claim.Namespace {
		t.Errorf("the volume is for %v", ref)
	}
	if volume.Labels[restoredVolume] != claim.Spec.Selector.MatchLabels[restoredVolume] {
		t.Errorf("the volume's labels %v do not match %v", volume.Labels, claim.Spec.Selector)
	}
	controlplane.Consistently(t, 2500*time.Millisecond, func() error { // longer than two looks at the volume
		if s.read(dd); dd.Status.Phase != velerov2.PhaseInProgress {
			return fmt.Errorf("%s before the claim has its volume", dd.Status.Phase)
		}
		return nil
	})
	s.bind(volume)
	s.reaches(dd, velerov2.PhaseCompleted)
	if diff := cmp.Diff(listing(t, filepath.Join(s.snapshots, "snap")), listing(t, volume.Spec.Local.Path)); diff != "" {
		t.Errorf("restored: %s", diff)
	}
	s.delete(dd)
	s.goesAway(dd)
	if !exists(volume.Spec.Local.Path) {
		t.Error("the claim's volume went with the DataDownload")
	}

	s.delete(du)
	controlplane.Eventually(t, func() error {
		if s.read(du); !slices.Equal(du.Finalizers, []string{"test.example/theirs"}) {
			return fmt.Errorf("finalizers %v", du.Finalizers)
		}
		return nil
	})
	if err := s.storeIsEmpty(); err != nil {
		t.Errorf("its finalizer is gone, and %v", err)
	}
}

// Objects of other movers stay as they are, to the byte, whatever is done to them.
func TestMover_leavesOthersObjectsAlone(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start("node-a")
	var objects []client.Object
	for _, datamover := range []string{"varve", "", "velero", "example2", "Example"} {
		for i, phase := range []velerov2.Phase{"", velerov2.PhaseNew, velerov2.PhaseInProgress, velerov2.PhaseCompleted} {
			snapshot := s.snapshot(fmt.Sprintf("snap-%s-%d", strings.ToLower(datamover), i), true)
			du := s.upload(snapshot, datamover)
			dd := s.download(s.claim(snapshot), "id", datamover)
			du.Status.Phase, dd.Status.Phase = phase, phase
			objects = append(objects, du, dd)
		}
	}
	for _, o := range objects {
		controllerutil.AddFinalizer(o, finalizer) // even with its own
		s.create(o)
	}
	cancelled, deleted := s.upload("none", "varve"), s.download(s.claim("d"), "id", "varve")
	deleted.Finalizers = []string{"test.example/theirs"}
	s.create(cancelled)
	s.create(deleted)
	controlplane.Update(t, s.api, cancelled, false, func(du *velerov2.DataUpload) { du.Spec.Cancel = true })
	s.delete(deleted)
	objects = append(objects, cancelled, deleted)
	before := map[string]string{}
	for _, o := range objects {
		before[fmt.Sprintf("%T %s", o, o.GetName())] = s.bytes(o)
	}
	// The mover has seen them when it has served one that was made after them, of either kind.
	s.finishOneOfEach()
	for _, o := range objects {
		if diff := cmp.Diff(before[fmt.Sprintf("%T %s", o, o.GetName())], s.bytes(o)); diff != "" {
			t.Errorf("changed: %s", diff)
		}
	}
	for i := range 4 {
		s.snapshotIsThere(fmt.Sprintf("snap-varve-%d", i))
	}
}

func TestMover_isCancelledInEachPhase(t *testing.T) {
	t.Parallel()
	for _, end := range []struct {
		name string
		with func(*site, client.Object)
	}{
		{"cancel", func(s *site, o client.Object) {
			patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"cancel":true}}`))
			if err := s.api.Patch(s.t.Context(), o, patch); err != nil {
				s.t.Fatal(err)
			}
		}},
		{"delete", func(s *site, o client.Object) { s.delete(o) }},
	} {
		t.Run(end.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			// Nobody has it yet.
			untaken := s.upload(s.snapshot("untaken", true), moverName)
			s.create(untaken)
			end.with(s, untaken)
			s.start("node-a")
			// The snapshot is not ready.
			accepted := s.upload(s.snapshot("accepted", false), moverName)
			s.create(accepted)
			s.reaches(accepted, velerov2.PhaseAccepted)
			end.with(s, accepted)
			// Data is moving.
			moving := s.upload(s.snapshot("moving", true), moverName)
			s.hold("moving")
			s.create(moving)
			s.reaches(moving, velerov2.PhaseInProgress)
			end.with(s, moving)
			for _, du := range []*velerov2.DataUpload{untaken, accepted, moving} {
				s.reaches(du, velerov2.PhaseCanceled)
				s.snapshotIsGone(du.Spec.CSISnapshot.VolumeSnapshot)
				if du.Status.CompletionTimestamp == nil || controllerutil.ContainsFinalizer(du, finalizer) {
					t.Errorf("%s: finalizers %v, ended at %v", du.Spec.CSISnapshot.VolumeSnapshot, du.Finalizers, du.Status.CompletionTimestamp)
				}
			}
			// The claim has not taken its volume.
			done := s.stored()
			binding := s.download(s.claim("data"), done.Status.SnapshotID, moverName)
			binding.Finalizers = append(binding.Finalizers, "test.example/theirs")
			s.create(binding)
			volume := s.volumeFor(binding)
			end.with(s, binding)
			s.reaches(binding, velerov2.PhaseCanceled)
			s.goesAway(volume)
			if exists(volume.Spec.Local.Path) {
				t.Error("the restored volume is left")
			}
			s.delete(done)
			controlplane.Eventually(t, func() error { return s.storeIsEmpty() })
		})
	}
}

func TestMover_failsWithTheReason(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start("node-a")
	for _, c := range []struct {
		object  client.Object
		message string
	}{
		{s.upload("none", moverName), "the VolumeSnapshot is gone"},
		{s.upload(s.snapshot("block", true, corev1.PersistentVolumeBlock), moverName), "the volume has the mode Block"},
		{s.impatient(s.upload(s.snapshot("slow", false), moverName)), "waited too long for VolumeSnapshot slow"},
		{s.upload(s.snapshot("..", true), moverName), `".." is not the name of a volume`},
		{s.download(s.claim("a"), "../snapshots/block", moverName), `"../snapshots/block" is not the name of a volume`},
		{s.download(s.claim("b"), ".", moverName), `"." is not the name of a volume`},
		{s.download(s.claim("c"), "2f6a", moverName), "this node has no "},
	} {
		s.create(c.object)
		s.reaches(c.object, velerov2.PhaseFailed)
		if _, message := status(c.object); !strings.Contains(message, c.message) {
			t.Errorf("%s, want %s", message, c.message)
		}
	}
	for _, name := range []string{"block", "slow", "dots"} {
		s.snapshotIsGone(name)
	}
	if err := s.storeIsEmpty(); err != nil {
		t.Error(err)
	}
}

// A mover that is killed while it copies goes on after its restart. Until then no other node has the object.
func TestMover_goesOnAfterARestart(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	stop := s.start("node-a")
	s.hold("snap")
	du := s.upload(s.snapshot("snap", true), moverName)
	s.create(du)
	s.reaches(du, velerov2.PhaseInProgress)
	s.start("node-b")
	stop()
	s.release("snap")
	s.finishOneOfEach()
	if s.read(du); du.Status.Phase != velerov2.PhaseInProgress || du.Status.AcceptedByNode != "node-a" {
		t.Errorf("%s on %s without node-a", du.Status.Phase, du.Status.AcceptedByNode)
	}
	s.start("node-a")
	s.reaches(du, velerov2.PhaseCompleted)
	s.snapshotIsGone("snap")
}

// Of two movers that have read the same object, one takes it.
func TestMover_takesByTheResourceVersion(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	du := s.upload(s.snapshot("snap", true), moverName)
	s.create(du)
	first, second := s.newMover("node-a"), s.newMover("node-b")
	o, same := s.untyped(du), s.untyped(du)
	if _, err := first.serve(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if _, err := second.serve(t.Context(), same); !apierrors.IsConflict(err) {
		t.Errorf("the second got %v", err)
	}
	// Nor does a phase hide a cancellation that came after the read.
	o = s.untyped(du)
	controlplane.Update(t, s.api, du, false, func(du *velerov2.DataUpload) { du.Spec.Cancel = true })
	if _, err := first.serve(t.Context(), o); !apierrors.IsConflict(err) {
		t.Errorf("the taker got %v", err)
	}
}

// bytes returns an object as the API server has it.
func (s *site) bytes(o client.Object) string {
	s.t.Helper()
	u := s.untyped(o)
	text, err := json.MarshalIndent(u.Object, "", " ")
	if err != nil {
		s.t.Fatal(err)
	}
	return string(text)
}

// storeIsEmpty says what is in the store.
func (s *site) storeIsEmpty() error {
	entries, err := os.ReadDir(s.store)
	for _, e := range entries {
		err = errors.Join(err, fmt.Errorf("the store has %s", e.Name()))
	}
	return err
}

// finishOneOfEach has the mover serve an upload and a download that are made now.
func (s *site) finishOneOfEach() {
	s.t.Helper()
	du := s.stored()
	dd := s.download(s.claim("barrier"), du.Status.SnapshotID, moverName)
	s.create(dd)
	s.bind(s.volumeFor(dd))
	s.reaches(dd, velerov2.PhaseCompleted)
}

// stored returns a DataUpload that is completed.
func (s *site) stored() *velerov2.DataUpload {
	s.t.Helper()
	du := s.upload(s.snapshot("barrier", true), moverName)
	du.Finalizers = nil
	s.create(du)
	s.reaches(du, velerov2.PhaseCompleted)
	return du
}

// recordPhases returns functions that tell which phases a new object of that name had, and who took it.
func (s *site) recordPhases(du *velerov2.DataUpload) (phases func() []velerov2.Phase, takers func() []string) {
	s.t.Helper()
	ctx, stop := context.WithCancel(s.t.Context())
	watcher, err := client.NewWithWatch(cluster.ConfigFor(controlplane.Admin), client.Options{Scheme: cluster.Scheme})
	if err != nil {
		s.t.Fatal(err)
	}
	list := &velerov2.DataUploadList{}
	if err := watcher.List(ctx, list, client.InNamespace(s.velero)); err != nil {
		s.t.Fatal(err)
	}
	// From the list's version on, no event is left out.
	from := &client.ListOptions{Namespace: s.velero, Raw: &metav1.ListOptions{ResourceVersion: list.ResourceVersion}}
	events, err := watcher.Watch(ctx, &velerov2.DataUploadList{}, from)
	if err != nil {
		s.t.Fatal(err)
	}
	var seen []velerov2.Phase
	var nodes []string
	done := make(chan struct{})
	go func() {
		defer close(done)
		for event := range events.ResultChan() {
			o, ok := event.Object.(*velerov2.DataUpload)
			if !ok || o.Name != du.Name {
				continue
			}
			if len(seen) == 0 || seen[len(seen)-1] != o.Status.Phase {
				seen = append(seen, o.Status.Phase)
			}
			if node := o.Status.AcceptedByNode; node != "" && !slices.Contains(nodes, node) {
				nodes = append(nodes, node)
			}
			if o.Status.Phase.Ended() {
				return
			}
		}
	}()
	finish := func() {
		select {
		case <-done:
		case <-time.After(time.Minute):
			s.t.Error("no end was seen")
		}
		stop()
		events.Stop()
		<-done
	}
	return func() []velerov2.Phase { finish(); return seen }, func() []string { return nodes }
}
