// Package startrequest says what a launcher gets to bring a guest up: the instance, and the claims of its disks as
// they are now. A launcher that starts the guest and one that takes it over from another node get the same.
package startrequest

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/runepoch"
	"github.com/varvebackup/varve/internal/tracking"
)

// Builder makes requests.
type Builder struct {
	// Live reads from the API server: the identity of a claim decides whether an overlay is trusted.
	Live client.Reader
	// Namespace is Varve's own namespace, which has the KubeVirt object.
	Namespace string
	Log       logr.Logger
}

// MissingClaimError says that a disk's claim does not exist.
type MissingClaimError struct{ Claim, Volume string }

// Error implements error.
func (e *MissingClaimError) Error() string {
	return fmt.Sprintf("claim %s of volume %s does not exist: create it", e.Claim, e.Volume)
}

// Build returns the request. *MissingClaimError: a claim does not exist.
func (b *Builder) Build(ctx context.Context, vmi *kubevirtv1.VirtualMachineInstance) (*launcherpb.StartRequest, error) {
	sources, err := b.readDiskSources(ctx, vmi)
	if err != nil {
		return nil, err
	}
	emulate, err := b.useEmulation(ctx)
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
	return &launcherpb.StartRequest{
		Instance: encoded, UseEmulation: emulate,
		ChangedBlockTracking: vmi.Annotations[layout.AnnotationTracking] == "true",
		Disks:                sources,
	}, nil
}

// readDiskSources reads the claims of the disks from the API server, because their identity decides whether an
// overlay is trusted.
func (b *Builder) readDiskSources(
	ctx context.Context, vmi *kubevirtv1.VirtualMachineInstance,
) ([]*launcherpb.DiskSource, error) {
	var all []*launcherpb.DiskSource
	for _, v := range vmi.Spec.Volumes {
		if v.PersistentVolumeClaim == nil {
			continue
		}
		claim := &corev1.PersistentVolumeClaim{}
		err := b.Live.Get(ctx, types.NamespacedName{Namespace: vmi.Namespace, Name: v.PersistentVolumeClaim.ClaimName}, claim)
		if apierrors.IsNotFound(err) {
			return nil, &MissingClaimError{v.PersistentVolumeClaim.ClaimName, v.Name}
		}
		if err != nil {
			return nil, fmt.Errorf("read claim %s of volume %s: %w", v.PersistentVolumeClaim.ClaimName, v.Name, err)
		}
		source := &launcherpb.DiskSource{
			Volume: v.Name, Block: tracking.IsBlock(claim.Spec.VolumeMode), ClaimUid: string(claim.UID),
			ContentGeneration: claim.Annotations[layout.AnnotationContentGeneration],
		}
		source.Run, source.PreviousRun, source.HadDisk = b.runOf(vmi, claim)
		all = append(all, source)
	}
	return all, nil
}

// runOf returns the instance's run on a claim, the run before it, and whether a guest has had a disk on the claim.
// Both runs are empty unless the claim names the instance's run as its last one. Without that, anybody may have written
// to the claim, so the launcher keeps no overlay.
func (b *Builder) runOf(
	vmi *kubevirtv1.VirtualMachineInstance, claim *corev1.PersistentVolumeClaim,
) (run, previous string, hadDisk bool) {
	epoch, err := runepoch.Of(claim)
	if err != nil {
		b.Log.Error(err, "the claim's runs are unknown: creating a new overlay", "namespace", claim.Namespace)
		return "", "", false
	}
	hadDisk = epoch.KnowsDisk(claim.Annotations[layout.AnnotationContentGeneration])
	if epoch.Run != runepoch.InstanceRun(vmi.UID) {
		return "", "", hadDisk
	}
	return epoch.Run, epoch.Previous, hadDisk
}

// useEmulation reads the setting at each start, so that a change takes effect without a restart of the handler.
func (b *Builder) useEmulation(ctx context.Context) (bool, error) {
	kv := &kubevirtv1.KubeVirt{}
	err := b.Live.Get(ctx, types.NamespacedName{Namespace: b.Namespace, Name: layout.Configuration}, kv)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read KubeVirt %s/%s: %w", b.Namespace, layout.Configuration, err)
	}
	dev := kv.Spec.Configuration.DeveloperConfiguration
	return dev != nil && dev.UseEmulation, nil
}
