// Package attachment finds the volume of a target claim as its attachment pod holds it on this node, and the volumes of
// a launcher pod.
//
// What an instance's status says about an attachment pod is not enough to mount from it: each object is read from
// the API server and must name the others. The pod must be the one that Varve makes for this volume of this
// instance, must be on this node, and must mount the claim. The claim's persistent volume must be bound to this
// claim and no other. A claim that merely asks for somebody else's volume has none.
package attachment

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/varvebackup/varve/internal/handler/machine/mount"
	"github.com/varvebackup/varve/internal/instancepod"
	"github.com/varvebackup/varve/internal/layout"
)

// ErrForeign says that an object has the right name but is not what Varve made, or is bound to another object.
var ErrForeign = errors.New("not an attachment that Varve created")

// ErrUnsupported says that the handler does not know where the kubelet mounts volumes of this kind.
var ErrUnsupported = errors.New("its kind of storage cannot be a target; use CSI, local, NFS, iSCSI or Fibre Channel")

// Volume identifies the volume to find.
type Volume struct {
	Namespace string
	// Instance and InstanceUID are the instance that the volume is attached to.
	Instance    string
	InstanceUID types.UID
	// Name is the utility volume's name, Claim that of its claim.
	Name, Claim string
	// PodUID is the UID of the attachment pod that status names. If empty, any pod with the right name will do.
	PodUID types.UID
}

// Find returns where the kubelet mounted the volume's claim. It returns mount.ErrNotAttached if the claim is not,
// or no longer, on the node, and ErrForeign if somebody put something else in its place. live must read from the
// API server.
func Find(ctx context.Context, live client.Reader, node string, v Volume) (mount.Source, error) {
	pod, err := findPod(ctx, live, node, v)
	if err != nil {
		return mount.Source{}, err
	}
	volume, err := boundVolume(ctx, live, types.NamespacedName{Namespace: v.Namespace, Name: v.Claim})
	if err != nil {
		return mount.Source{}, err
	}
	for i := range pod.Spec.Volumes {
		if pod.Spec.Volumes[i].Name == volume.Name {
			// The kubelet names the directories of other kinds of volumes by their names in the pod.
			return mount.Source{}, fmt.Errorf("pod %s has a volume %s: %w", pod.Name, volume.Name, ErrForeign)
		}
	}
	plugin, err := pluginDirectory(volume)
	if err != nil {
		return mount.Source{}, err
	}
	return mount.Source{Pod: pod.UID, Plugin: plugin, Volume: volume.Name}, nil
}

// OfPod returns where the kubelet mounts a claim for a pod on this node, whether or not it has mounted it yet. It
// returns mount.ErrNotAttached if the claim is not bound. live must read from the API server.
func OfPod(ctx context.Context, live client.Reader, claim types.NamespacedName, pod types.UID) (mount.Source, error) {
	volume, err := boundVolume(ctx, live, claim)
	if err != nil {
		return mount.Source{}, err
	}
	plugin, err := pluginDirectory(volume)
	if err != nil {
		return mount.Source{}, err
	}
	return mount.Source{Pod: pod, Plugin: plugin, Volume: volume.Name}, nil
}

func findPod(ctx context.Context, live client.Reader, node string, v Volume) (*corev1.Pod, error) {
	name := layout.AttachmentPod(v.Instance, v.InstanceUID, v.Name)
	pod := &corev1.Pod{}
	if err := live.Get(ctx, types.NamespacedName{Namespace: v.Namespace, Name: name}, pod); err != nil {
		return nil, orNotAttached(err, "attachment pod "+name)
	}
	switch {
	case !instancepod.IsAttachment(pod, v.Instance, v.InstanceUID, v.Name) || !instancepod.HoldsClaim(pod, v.Claim):
		return nil, fmt.Errorf("pod %s does not hold claim %s for VirtualMachineInstance %s: %w", name, v.Claim, v.Instance, ErrForeign)
	case v.PodUID != "" && pod.UID != v.PodUID:
		return nil, fmt.Errorf("attachment pod %s was replaced: %w", name, mount.ErrNotAttached)
	case pod.Spec.NodeName != node:
		return nil, fmt.Errorf("attachment pod %s is on node %q: %w", name, pod.Spec.NodeName, mount.ErrNotAttached)
	}
	return pod, nil
}

// boundVolume returns the persistent volume of a claim. The two must name each other; only then are they bound.
func boundVolume(ctx context.Context, live client.Reader, name types.NamespacedName) (*corev1.PersistentVolume, error) {
	claim := &corev1.PersistentVolumeClaim{}
	if err := live.Get(ctx, name, claim); err != nil {
		return nil, orNotAttached(err, "claim "+name.Name)
	}
	if claim.Spec.VolumeName == "" {
		return nil, fmt.Errorf("claim %s is not bound: %w", name.Name, mount.ErrNotAttached)
	}
	volume := &corev1.PersistentVolume{}
	if err := live.Get(ctx, types.NamespacedName{Name: claim.Spec.VolumeName}, volume); err != nil {
		return nil, orNotAttached(err, "volume "+claim.Spec.VolumeName)
	}
	ref := volume.Spec.ClaimRef
	if ref == nil || ref.Namespace != claim.Namespace || ref.Name != claim.Name || ref.UID != claim.UID {
		return nil, fmt.Errorf("volume %s is not bound to claim %s: %w", volume.Name, name.Name, ErrForeign)
	}
	return volume, nil
}

// pluginDirectory returns the directory where the kubelet keeps the volumes of the plugin that mounts this volume.
// The cloud providers' in-tree volumes are mounted by their CSI drivers.
func pluginDirectory(volume *corev1.PersistentVolume) (string, error) {
	s := &volume.Spec.PersistentVolumeSource
	switch {
	case s.CSI != nil, s.AWSElasticBlockStore != nil, s.GCEPersistentDisk != nil, s.AzureDisk != nil, s.AzureFile != nil, s.Cinder != nil,
		s.VsphereVolume != nil, s.PortworxVolume != nil:
		return mount.PluginCSI, nil
	case s.Local != nil:
		return "kubernetes.io~local-volume", nil
	case s.NFS != nil:
		return "kubernetes.io~nfs", nil
	case s.ISCSI != nil:
		return "kubernetes.io~iscsi", nil
	case s.FC != nil:
		return "kubernetes.io~fc", nil
	}
	return "", fmt.Errorf("volume %s: %w", volume.Name, ErrUnsupported)
}

func orNotAttached(err error, what string) error {
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("%s: %w", what, mount.ErrNotAttached)
	}
	return fmt.Errorf("read %s: %w", what, err)
}
