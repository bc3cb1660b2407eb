package virtualmachinesnapshot

import (
	"context"
	"fmt"
	"strings"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	vmsnapshotv1 "github.com/varvebackup/varve/api/snapshot/v1beta1"
	"github.com/varvebackup/varve/internal/definition"
	"github.com/varvebackup/varve/internal/reconcile"
)

// input is what a decision follows from.
type input struct {
	now                          time.Time
	freezePatience, thawPatience time.Duration
	snapshot                     *vmsnapshotv1.VirtualMachineSnapshot
	// content is the object with the name that the snapshot's content has. Somebody else may have made it. nil if it does
	// not exist.
	content *vmsnapshotv1.VirtualMachineSnapshotContent
	// made are the VolumeSnapshots that were made for the snapshot, by their names.
	made map[string]*snapshotv1.VolumeSnapshot
	// machine and instance are nil if they do not exist. They were read after made.
	machine  *unstructured.Unstructured
	instance *kubevirtv1.VirtualMachineInstance
	// claims are those of the machine's volumes that exist, by their names.
	claims map[string]claim
	// classes are all VolumeSnapshotClasses. notInstalled says that the cluster does not have the kinds of snapshots.
	classes      []snapshotv1.VolumeSnapshotClass
	notInstalled bool
}

// claim is a claim and the driver of its volume.
type claim struct {
	*corev1.PersistentVolumeClaim
	// bound says that the claim has its volume. driver is the volume's CSI driver, or "".
	bound  bool
	driver string
}

// status returns the snapshot's status, which may be empty, for reading.
func (in *input) status() *vmsnapshotv1.VirtualMachineSnapshotStatus {
	if in.snapshot.Status == nil {
		return &vmsnapshotv1.VirtualMachineSnapshotStatus{}
	}
	return in.snapshot.Status
}

// isPlanned says that the content was made and is named in the status.
func (in *input) isPlanned() bool { return in.status().VirtualMachineSnapshotContentName != nil }

// ownContent returns the content if it is the snapshot's, or nil.
func (in *input) ownContent() *vmsnapshotv1.VirtualMachineSnapshotContent {
	if in.content == nil || in.content.Labels[LabelSnapshot] != string(in.snapshot.UID) {
		return nil
	}
	return in.content
}

// isRunning says whether a guest runs, or is about to.
func (in *input) isRunning() bool { return in.instance != nil && !in.instance.Status.Phase.Final() }

// gatherInput reads what decide looks at.
func (r *reconciler) gatherInput(ctx context.Context, s *vmsnapshotv1.VirtualMachineSnapshot) (*input, error) {
	in := &input{
		now: r.Clock.Now(), freezePatience: r.FreezePatience, thawPatience: r.ThawPatience, snapshot: s,
		claims: map[string]claim{},
	}
	if isOver(s) && s.DeletionTimestamp == nil {
		return in, nil
	}
	var err error
	key := types.NamespacedName{Namespace: s.Namespace, Name: contentName(s)}
	if in.content, err = reconcile.Find(ctx, r.live, key, &vmsnapshotv1.VirtualMachineSnapshotContent{}); err != nil {
		return nil, err
	}
	if in.made, in.notInstalled, err = r.findMade(ctx, s.Namespace, s.UID); err != nil {
		return nil, err
	}
	if s.DeletionTimestamp != nil || s.HasFailed() || in.status().CreationTime != nil {
		return in, nil // the machine does not matter any more
	}
	key.Name = s.Spec.Source.Name
	if in.instance, err = reconcile.Find(ctx, r.live, key, &kubevirtv1.VirtualMachineInstance{}); err != nil {
		return nil, err
	}
	if in.machine, err = reconcile.Find(ctx, r.live, key, definition.NewMachine()); err != nil {
		return nil, err
	}
	return in, r.findClaims(ctx, in)
}

// findMade reads the VolumeSnapshots of a snapshot.
func (r *reconciler) findMade(
	ctx context.Context, namespace string, uid types.UID,
) (made map[string]*snapshotv1.VolumeSnapshot, notInstalled bool, err error) {
	var list snapshotv1.VolumeSnapshotList
	err = r.live.List(ctx, &list, client.InNamespace(namespace), client.MatchingLabels{LabelSnapshot: string(uid)})
	if isNotInstalled(err) {
		return nil, true, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("list the VolumeSnapshots of %s: %w", namespace, err)
	}
	made = map[string]*snapshotv1.VolumeSnapshot{}
	for i := range list.Items {
		if strings.HasPrefix(list.Items[i].Name, volumeSnapshotPrefix(uid)) {
			made[list.Items[i].Name] = &list.Items[i]
		}
	}
	return made, false, nil
}

// isNotInstalled says that the API server does not have a kind.
func isNotInstalled(err error) bool { return meta.IsNoMatchError(err) || apierrors.IsNotFound(err) }

// findClaims reads what a plan needs, and, while a stopped machine is looked after, its claims.
func (r *reconciler) findClaims(ctx context.Context, in *input) error {
	guest := in.guestSpec()
	if guest == nil || in.isPlanned() && in.status().InstanceUID != "" {
		return nil
	}
	for _, v := range guest.Volumes {
		if v.PersistentVolumeClaim == nil {
			continue
		}
		key := types.NamespacedName{Namespace: in.snapshot.Namespace, Name: v.PersistentVolumeClaim.ClaimName}
		object, err := reconcile.Find(ctx, r.live, key, &corev1.PersistentVolumeClaim{})
		if err != nil {
			return err
		}
		if object == nil {
			continue
		}
		c := claim{PersistentVolumeClaim: object}
		if !in.isPlanned() {
			if c.bound, c.driver, err = r.findDriver(ctx, object); err != nil {
				return err
			}
		}
		in.claims[object.Name] = c
	}
	if in.isPlanned() || in.notInstalled {
		return nil
	}
	var classes snapshotv1.VolumeSnapshotClassList
	switch err := r.live.List(ctx, &classes); {
	case isNotInstalled(err):
		in.notInstalled = true
	case err != nil:
		return fmt.Errorf("list the VolumeSnapshotClasses: %w", err)
	}
	in.classes = classes.Items
	return nil
}

// findDriver returns whether a claim has its volume, and the volume's CSI driver, or "".
func (r *reconciler) findDriver(ctx context.Context, c *corev1.PersistentVolumeClaim) (bound bool, driver string, err error) {
	key := types.NamespacedName{Name: c.Spec.VolumeName}
	volume, err := reconcile.Find(ctx, r.live, key, &corev1.PersistentVolume{})
	if err != nil || volume == nil || volume.Spec.ClaimRef == nil || volume.Spec.ClaimRef.UID != c.UID {
		return false, "", err
	}
	if volume.Spec.CSI != nil {
		driver = volume.Spec.CSI.Driver
	}
	return true, driver, nil
}

// guestSpec returns the spec of the guest that runs, or, if none does, of the one that would be started; nil: neither is
// known.
func (in *input) guestSpec() *kubevirtv1.VirtualMachineInstanceSpec {
	if in.isRunning() {
		return &in.instance.Spec
	}
	if vm := in.typedMachine(); vm != nil {
		return &vm.Spec.Template.Spec
	}
	return nil
}

// typedMachine returns the machine with its fields, or nil if it does not exist or cannot be read.
func (in *input) typedMachine() *kubevirtv1.VirtualMachine {
	if in.machine == nil {
		return nil
	}
	vm := &kubevirtv1.VirtualMachine{}
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(in.machine.Object, vm)
	if err != nil || vm.Spec.Template == nil {
		return nil
	}
	return vm
}
