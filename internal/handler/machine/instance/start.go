package instance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/handler/launcherclient"
	"github.com/varvebackup/varve/internal/handler/machine/attachment"
	"github.com/varvebackup/varve/internal/handler/machine/mount"
	"github.com/varvebackup/varve/internal/handler/turns"
	"github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/runepoch"
	"github.com/varvebackup/varve/internal/tracking"
)

// startGuest tells the launcher to start the guest. A problem is shown in status, for the user or until the next
// attempt.
func (r *Reconciler) startGuest(ctx context.Context, vmi *kubevirtv1.VirtualMachineInstance, l *launcherclient.Client) (*problem, error) {
	sources, missing, err := r.readDiskSources(ctx, vmi)
	if err != nil || missing != nil {
		return missing, err
	}
	if err := r.admitToDisks(ctx, vmi, sources); err != nil {
		return nil, err
	}
	emulate, err := r.useEmulation(ctx)
	if err != nil {
		return nil, err
	}
	// The launcher gets what the guest is made from, and nothing that changes while the guest runs.
	bare := &kubevirtv1.VirtualMachineInstance{Spec: *vmi.Spec.DeepCopy()}
	bare.Name, bare.Namespace, bare.UID = vmi.Name, vmi.Namespace, vmi.UID
	bare.Labels, bare.Annotations = vmi.Labels, vmi.Annotations
	bare.Spec.UtilityVolumes = nil
	encoded, err := json.Marshal(bare)
	if err != nil {
		return nil, fmt.Errorf("encode the instance: %w", err)
	}
	_, err = l.RPC().Start(ctx, &launcherpb.StartRequest{
		Instance: encoded, UseEmulation: emulate,
		ChangedBlockTracking: vmi.Annotations[layout.AnnotationTracking] == "true",
		Disks:                sources,
	})
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

// readDiskSources reads the claims of the disks from the API server, because their identity decides whether an overlay is
// trusted.
func (r *Reconciler) readDiskSources(ctx context.Context, vmi *kubevirtv1.VirtualMachineInstance) ([]*launcherpb.DiskSource, *problem, error) {
	var all []*launcherpb.DiskSource
	for _, v := range vmi.Spec.Volumes {
		if v.PersistentVolumeClaim == nil {
			continue
		}
		claim := &corev1.PersistentVolumeClaim{}
		err := r.Live.Get(ctx, types.NamespacedName{Namespace: vmi.Namespace, Name: v.PersistentVolumeClaim.ClaimName}, claim)
		if apierrors.IsNotFound(err) {
			return nil, &problem{ReasonClaimNotFound, fmt.Sprintf("claim %s of volume %s does not exist: create it", v.PersistentVolumeClaim.ClaimName, v.Name)}, nil
		}
		if err != nil {
			return nil, nil, fmt.Errorf("read claim %s of volume %s: %w", v.PersistentVolumeClaim.ClaimName, v.Name, err)
		}
		source := &launcherpb.DiskSource{
			Volume: v.Name, Block: tracking.IsBlock(claim.Spec.VolumeMode), ClaimUid: string(claim.UID),
			ContentGeneration: claim.Annotations[layout.AnnotationContentGeneration],
		}
		source.Run, source.PreviousRun, source.HadDisk = r.runOf(vmi, claim)
		all = append(all, source)
	}
	return all, nil, nil
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

// runOf returns the instance's run on a claim, the run before it, and whether a guest has had a disk on the claim.
// The runs are empty if the claim names another run as its last one, or none. Then nobody knows who wrote to the
// claim, and the launcher keeps no overlay.
func (r *Reconciler) runOf(vmi *kubevirtv1.VirtualMachineInstance, claim *corev1.PersistentVolumeClaim) (run, previous string, hadDisk bool) {
	epoch, err := runepoch.Of(claim)
	if err != nil {
		r.Log.Error(err, "the claim's runs are unknown: creating a new overlay", "namespace", claim.Namespace)
		return "", "", false
	}
	hadDisk = epoch.KnowsDisk(claim.Annotations[layout.AnnotationContentGeneration])
	if epoch.Run != runepoch.InstanceRun(vmi.UID) {
		return "", "", hadDisk
	}
	return epoch.Run, epoch.Previous, hadDisk
}

// useEmulation reads the setting at each start, so that a change takes effect without a restart of the handler.
func (r *Reconciler) useEmulation(ctx context.Context) (bool, error) {
	kv := &kubevirtv1.KubeVirt{}
	err := r.Live.Get(ctx, types.NamespacedName{Namespace: r.Namespace, Name: layout.Configuration}, kv)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read KubeVirt %s/%s: %w", r.Namespace, layout.Configuration, err)
	}
	dev := kv.Spec.Configuration.DeveloperConfiguration
	return dev != nil && dev.UseEmulation, nil
}
