//go:build controlplane || root

package handler_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	vmsnapshotv1 "github.com/varvebackup/varve/api/snapshot/v1beta1"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/test/controlplane"
	"github.com/varvebackup/varve/test/gen"
)

// FreezeGuest and ThawGuest answer an owner as the launcher does.
func (f *fakeLauncher) FreezeGuest(_ context.Context, r *pb.FreezeGuestRequest) (*pb.FreezeGuestResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, "FreezeGuest")
	f.freezeRequest = r
	if f.refuseFreeze != nil {
		return nil, f.refuseFreeze
	}
	f.frozenFor = r.GetOwner()
	if f.loseAnswer {
		f.loseAnswer = false
		return nil, status.Error(codes.Unavailable, "the answer is lost")
	}
	return &pb.FreezeGuestResponse{}, nil
}

func (f *fakeLauncher) ThawGuest(_ context.Context, r *pb.ThawGuestRequest) (*pb.ThawGuestResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, "ThawGuest")
	if f.frozenFor != r.GetOwner() {
		return &pb.ThawGuestResponse{Skipped: "the guest was not frozen by this owner"}, nil
	}
	if f.refuseThaw != nil {
		return nil, f.refuseThaw
	}
	return &pb.ThawGuestResponse{}, nil
}

// snapshot makes a snapshot of the instance whose guest is to be frozen.
func (w *world) snapshot(name string, instance types.UID) *vmsnapshotv1.VirtualMachineSnapshot {
	w.t.Helper()
	s := gen.MachineSnapshot(gen.Meta(w.ns, name))
	s.Annotations = map[string]string{vmsnapshotv1.AnnotationFreezeDeadline: "5s"}
	w.create(s)
	w.request(s, vmsnapshotv1.FreezeRequest, instance)
	return s
}

// request plays the controller.
func (w *world) request(s *vmsnapshotv1.VirtualMachineSnapshot, request vmsnapshotv1.QuiesceRequest, instance types.UID) {
	w.t.Helper()
	controlplane.Update(w.t, w.client, s, true, func(s *vmsnapshotv1.VirtualMachineSnapshot) {
		if s.Status == nil {
			s.Status = &vmsnapshotv1.VirtualMachineSnapshotStatus{
				Phase: vmsnapshotv1.InProgress, NodeName: w.node, InstanceUID: instance,
				Quiesce: &vmsnapshotv1.Quiesce{},
			}
		}
		s.Status.Quiesce.Request, s.Status.Quiesce.RequestTime = request, ptr.To(metav1.Now())
	})
}

func (w *world) becomes(s *vmsnapshotv1.VirtualMachineSnapshot, state vmsnapshotv1.QuiesceState, message string) {
	w.t.Helper()
	w.until(func() error {
		if err := w.client.Get(w.t.Context(), client.ObjectKeyFromObject(s), s); err != nil {
			return err
		}
		q := s.Status.Quiesce
		return want(q.State == state && q.Message == message, "%s: state %q, message %q", s.Name, q.State, q.Message)
	})
}

func TestSnapshot_freezesAndThaws(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.started()
	s := w.snapshot("s", w.vmi.UID)
	w.becomes(s, vmsnapshotv1.Frozen, "")
	w.launcher.view(func() {
		if r := w.launcher.freezeRequest; r.GetOwner() != string(s.UID) || r.GetLimitMillis() != 5000 {
			t.Errorf("%+v", r)
		}
	})
	w.request(s, vmsnapshotv1.ThawRequest, "")
	w.becomes(s, vmsnapshotv1.Thawed, "")

	// Another handler between the two thaws what the first has frozen, and does not say that it lasted if it did not.
	s = w.snapshot("early", w.vmi.UID)
	w.becomes(s, vmsnapshotv1.Frozen, "")
	w.stop()
	w.launcher.view(func() {
		w.launcher.refuseThaw = status.Error(codes.FailedPrecondition, "it was frozen for 5s, which is the limit")
	})
	w.request(s, vmsnapshotv1.ThawRequest, "")
	w.run()
	w.becomes(s, vmsnapshotv1.ThawedEarly, "it was frozen for 5s, which is the limit")
	w.launcher.view(func() { w.launcher.refuseThaw = nil })

	// An answer that is lost is asked for again.
	w.launcher.view(func() { w.launcher.loseAnswer = true })
	frozen := w.launcher.count("FreezeGuest")
	s = w.snapshot("lost", w.vmi.UID)
	w.becomes(s, vmsnapshotv1.Frozen, "")
	if n := w.launcher.count("FreezeGuest"); n != frozen+2 {
		t.Errorf("asked %d times", n-frozen)
	}
	w.request(s, vmsnapshotv1.ThawRequest, "")
	w.becomes(s, vmsnapshotv1.Thawed, "")

	// A guest that is frozen for somebody else stays so.
	w.launcher.view(func() {
		w.launcher.refuseFreeze = status.Error(codes.FailedPrecondition,
			"the guest is still frozen")
	})
	thawed := w.launcher.count("ThawGuest")
	s = w.snapshot("taken", w.vmi.UID)
	w.becomes(s, vmsnapshotv1.NotFrozen, "the guest is still frozen")
	w.request(s, vmsnapshotv1.ThawRequest, "")
	other := w.snapshot("other-instance", "another")
	w.becomes(other, vmsnapshotv1.NotFrozen, "the guest has ended")
	controlplane.Consistently(t, time.Second, func() error {
		return want(w.launcher.count("ThawGuest") == thawed, "somebody else's freeze was ended")
	})
}
