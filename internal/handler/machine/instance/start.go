package instance

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/handler/launcherclient"
	"github.com/varvebackup/varve/internal/handler/machine/attachment"
	"github.com/varvebackup/varve/internal/handler/machine/mount"
	"github.com/varvebackup/varve/internal/handler/machine/startrequest"
	"github.com/varvebackup/varve/internal/handler/turns"
	"github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/layout"
)

// startGuest tells the launcher to start the guest. A problem is shown in status, for the user or until the next
// attempt.
func (r *Reconciler) startGuest(ctx context.Context, vmi *kubevirtv1.VirtualMachineInstance, l *launcherclient.Client) (*problem, error) {
	request, err := r.Requests.Build(ctx, vmi)
	var missing *startrequest.MissingClaimError
	if errors.As(err, &missing) {
		return &problem{ReasonClaimNotFound, missing.Error()}, nil
	}
	if err != nil {
		return nil, err
	}
	if err := r.admitToDisks(ctx, vmi, request.GetDisks()); err != nil {
		return nil, err
	}
	_, err = l.RPC().Start(ctx, request)
	switch status.Code(err) {
	case codes.OK:
		r.Events.Eventf(vmi, nil, corev1.EventTypeNormal, "Started", "Start", "The guest was started on node %s.", r.NodeName)
		return nil, nil
	case codes.FailedPrecondition, codes.InvalidArgument, codes.NotFound:
		message := status.Convert(err).Message()
		r.Events.Eventf(vmi, nil, corev1.EventTypeWarning, ReasonStartFailed, "Start", "%s", message)
		return &problem{ReasonStartFailed, message}, nil
	}
	return nil, fmt.Errorf("start the guest: %w", err)
}

// admitToDisks lets the launcher, which is not root, use what it finds on its claims, whoever made it.
func (r *Reconciler) admitToDisks(ctx context.Context, vmi *kubevirtv1.VirtualMachineInstance, disks []*launcherpb.DiskSource) error {
	pod, ok := launcherPod(vmi, r.NodeName)
	if !ok {
		return nil
	}
	var claims []string
	for _, v := range vmi.Spec.Volumes {
		filesystem := slices.ContainsFunc(disks, func(d *launcherpb.DiskSource) bool { return d.GetVolume() == v.Name && !d.GetBlock() })
		if filesystem && !v.PersistentVolumeClaim.ReadOnly {
			claims = append(claims, v.PersistentVolumeClaim.ClaimName)
		}
	}
	if vmi.Annotations[layout.AnnotationTracking] == "true" {
		claims = append(claims, layout.StatePVCs(vmi.Name)...) // one of them may not exist
	}
	for _, claim := range claims {
		source, err := attachment.OfPod(ctx, r.Live, types.NamespacedName{Namespace: vmi.Namespace, Name: claim}, pod)
		if err == nil {
			turns.Outside(ctx, func() { err = r.Mounts.Admit(source) })
		}
		// Of other volumes the launcher says itself if it cannot use them.
		if err != nil && !errors.Is(err, mount.ErrNotAttached) && !errors.Is(err, attachment.ErrUnsupported) {
			return err
		}
	}
	return nil
}
