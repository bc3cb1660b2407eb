package harvesterbackup

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/controller/child"
	"github.com/varvebackup/varve/internal/definition"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/reconcile"
)

const (
	// lookEvery is how often the progress of DataUploads is read, of which no event tells.
	lookEvery = 3 * time.Second
	// uploadTimeout bounds each wait of a DataUpload, as the command line and Velero have it.
	uploadTimeout = 10 * time.Minute
)

// Reconcile takes one backup one step further.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	result, err := r.advance(ctx, req.NamespacedName)
	if err != nil && !apierrors.IsConflict(err) {
		err = fmt.Errorf("VirtualMachineBackup %s of harvesterhci.io: %w", req.NamespacedName, err)
	}
	return reconcile.RetryConflict(result, err)
}

func (r *reconciler) advance(ctx context.Context, key types.NamespacedName) (ctrl.Result, error) {
	b, err := reconcile.Find(ctx, r.live, key, &harvesterv1.VirtualMachineBackup{})
	if err != nil || b == nil {
		return ctrl.Result{}, err
	}
	switch {
	case b.DeletionTimestamp != nil:
		return r.deleteStored(ctx, b)
	case b.IsReady() || b.HasFailed():
		return r.finishEnded(ctx, b)
	case controllerutil.AddFinalizer(b, Finalizer):
		base := b.DeepCopy()
		controllerutil.RemoveFinalizer(base, Finalizer)
		return ctrl.Result{}, r.cached.Patch(ctx, b, reconcile.MergeFrom(base)) // the write comes back as an event
	case b.Status.Group == "" && isFound(b):
		return r.findStored(ctx, b)
	case b.Status.Group == "":
		return r.writePlan(ctx, b)
	}
	return r.carryOut(ctx, b)
}

// carryOut does what the status says is to be done.
func (r *reconciler) carryOut(ctx context.Context, b *harvesterv1.VirtualMachineBackup) (ctrl.Result, error) {
	if isSnapshot(b) {
		return r.takeSnapshot(ctx, b)
	}
	return r.storeDisks(ctx, b)
}

// writePlan writes down what is to be stored, before anything is made for it.
func (r *reconciler) writePlan(ctx context.Context, b *harvesterv1.VirtualMachineBackup) (ctrl.Result, error) {
	in, err := r.readInput(ctx, b)
	if err != nil {
		return ctrl.Result{}, err
	}
	base := b.DeepCopy()
	switch p := makePlan(in); {
	case p.refused != "":
		return ctrl.Result{}, r.endFailed(ctx, base, b, p.refused)
	case p.waiting != "":
		setProgressing(&b.Status, in.now, p.waiting)
		again := min(reconcile.PollInterval(in.now.Sub(b.CreationTimestamp.Time)),
			max(p.deadline.Sub(in.now), time.Second))
		return ctrl.Result{RequeueAfter: again}, r.writeStatus(ctx, base, b)
	default:
		p.status.Conditions = b.Status.Conditions
		b.Status = *p.status
		setProgressing(&b.Status, in.now, "")
		if err := r.writeStatus(ctx, base, b); err != nil {
			return ctrl.Result{}, err
		}
		return r.carryOut(ctx, b)
	}
}

// readInput reads what a plan follows from.
func (r *reconciler) readInput(ctx context.Context, b *harvesterv1.VirtualMachineBackup) (*input, error) {
	in := &input{
		now: r.Clock.Now(), backup: b, beside: r.BesideKubeVirt, claims: map[string]*corev1.PersistentVolumeClaim{},
		drivers: map[string]string{},
	}
	key := types.NamespacedName{Namespace: b.Namespace, Name: b.Spec.Source.Name}
	var err error
	if in.machine, err = reconcile.Find(ctx, r.live, key, definition.NewMachine()); err != nil || in.machine == nil {
		return in, err
	}
	if in.instance, err = r.findInstance(ctx, key); err != nil {
		return in, err
	}
	if isStopped(in.instance) {
		in.stopped = machineOf(in.machine)
	}
	if in.guestSpec() == nil {
		return in, nil
	}
	if err := r.readClaims(ctx, in); err != nil {
		return nil, err
	}
	if in.stopped != nil {
		if err := r.confirmStopped(ctx, in); err != nil {
			return nil, err
		}
	}
	if in.earlier, err = r.findEarlier(ctx, b); err != nil {
		return nil, err
	}
	in.locations, err = r.listLocations(ctx)
	return in, err
}

// findInstance returns the guest of a machine, or nil. Its DataVolumes have claims as other volumes have them.
func (r *reconciler) findInstance(
	ctx context.Context, key types.NamespacedName,
) (*kubevirtv1.VirtualMachineInstance, error) {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(kubevirtv1.GroupVersion.WithKind("VirtualMachineInstance"))
	o, err := reconcile.Find(ctx, r.live, key, o)
	if err != nil || o == nil {
		return nil, err
	}
	instance := &kubevirtv1.VirtualMachineInstance{}
	if err = definition.NameClaims(o, "spec", "volumes"); err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, instance)
	}
	if err != nil {
		return nil, fmt.Errorf("decode VirtualMachineInstance %s: %w", key, err)
	}
	return instance, nil
}

func (r *reconciler) listLocations(ctx context.Context) ([]velerov1.BackupStorageLocation, error) {
	var locations velerov1.BackupStorageLocationList
	if err := r.cached.List(ctx, &locations, client.InNamespace(r.Namespace)); err != nil {
		return nil, fmt.Errorf("list the BackupStorageLocations of %s: %w", r.Namespace, err)
	}
	return locations.Items, nil
}

// readClaims reads the claims of the guest's volumes, and who makes their volumes.
func (r *reconciler) readClaims(ctx context.Context, in *input) error {
	for _, v := range in.guestSpec().Volumes {
		if v.PersistentVolumeClaim == nil {
			continue
		}
		claim, err := reconcile.Find(ctx, r.live, types.NamespacedName{
			Namespace: in.backup.Namespace,
			Name:      v.PersistentVolumeClaim.ClaimName,
		}, &corev1.PersistentVolumeClaim{})
		if err != nil {
			return err
		}
		if claim == nil {
			continue
		}
		in.claims[claim.Name] = claim
		key := types.NamespacedName{Name: ptr.Deref(claim.Spec.StorageClassName, "")}
		class, err := reconcile.Find(ctx, r.cached, key, &storagev1.StorageClass{})
		if err != nil {
			return err
		}
		if class != nil {
			in.drivers[claim.Name] = class.Provisioner
		}
	}
	return nil
}

// findEarlier returns the name of a backup of the same machine that comes before this one, or "". They run one after
// the other: one machine has one backup at a time, and a DataUpload does not wait for hours.
func (r *reconciler) findEarlier(ctx context.Context, b *harvesterv1.VirtualMachineBackup) (string, error) {
	var list harvesterv1.VirtualMachineBackupList
	if err := r.live.List(ctx, &list, client.InNamespace(b.Namespace),
		client.MatchingLabelsSelector{Selector: layout.UnfinishedBackups()}); err != nil {
		return "", fmt.Errorf("list the backups of %s: %w", b.Namespace, err)
	}
	for i := range list.Items {
		o := &list.Items[i]
		before := cmp.Or(o.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(o.Name, b.Name)) < 0
		ended := o.IsReady() || o.HasFailed()
		if r.BesideKubeVirt {
			ended = false // KubeVirt's backup of it may still be there, and KubeVirt takes one at a time
		}
		if o.UID != b.UID && before && o.Spec.Source.Name == b.Spec.Source.Name && !ended && o.DeletionTimestamp == nil {
			return o.Name, nil
		}
	}
	return "", nil
}

// storeDisks makes what the disks need, and looks how far they are.
func (r *reconciler) storeDisks(ctx context.Context, b *harvesterv1.VirtualMachineBackup) (ctrl.Result, error) {
	all, err := r.readUploads(ctx, b)
	if err != nil {
		return ctrl.Result{}, err
	}
	if failed, err := r.failWritten(ctx, b); failed || err != nil {
		return ctrl.Result{}, err
	}
	if made, result, err := r.makeOrFail(ctx, b, all); err != nil || !made {
		return result, err
	}
	base, now := b.DeepCopy(), r.Clock.Now()
	o := observeUploads(&b.Status, now, all)
	if o.failed == "" && !o.stored {
		if o.failed, err = r.noteDifference(ctx, b); err != nil {
			return ctrl.Result{}, err
		}
	}
	if o.stored {
		// The disks are stored: what starts from now on changes nothing.
		if failed, err := r.failWritten(ctx, b); failed || err != nil {
			return ctrl.Result{}, err
		}
	}
	switch {
	case o.stored:
		setReady(&b.Status, now)
		if err := r.writeStatus(ctx, base, b); err != nil {
			return ctrl.Result{}, err
		}
		r.events.Eventf(b, nil, corev1.EventTypeNormal, "Ready", "BackUp",
			"the machine and its disks are stored in BackupStorageLocation %s", b.Status.Location.Name)
		return ctrl.Result{}, nil
	case o.failed != "":
		ended, err := all.Cancel(ctx, r.cached)
		if err != nil {
			return ctrl.Result{}, err
		}
		if ended {
			return ctrl.Result{}, r.endFailed(ctx, base, b, o.failed)
		}
		setProgressing(&b.Status, now, "the other disks to end, because of "+o.failed)
	default:
		setProgressing(&b.Status, now, o.waiting)
	}
	return ctrl.Result{RequeueAfter: lookEvery}, r.writeStatus(ctx, base, b)
}

// makeOrFail makes what the disks need, or ends the backup if that can never be made. made: everything is there.
func (r *reconciler) makeOrFail(ctx context.Context, b *harvesterv1.VirtualMachineBackup, all uploads) (made bool, result ctrl.Result, err error) {
	if child.AreMade(b) {
		return true, ctrl.Result{}, nil
	}
	base := b.DeepCopy()
	waiting, refused, err := r.makeChildren(ctx, b, all)
	switch {
	case err != nil:
		return false, ctrl.Result{}, err
	case refused != "":
		if ended, err := all.Cancel(ctx, r.cached); err != nil || !ended {
			return false, ctrl.Result{RequeueAfter: lookEvery}, err
		}
		return false, ctrl.Result{}, r.endFailed(ctx, base, b, refused)
	case waiting != "":
		setProgressing(&b.Status, r.Clock.Now(), waiting)
		return false, ctrl.Result{RequeueAfter: lookEvery}, r.writeStatus(ctx, base, b)
	}
	return true, ctrl.Result{}, nil
}

// noteDifference returns what findDifference finds, and writes it into the status of a disk: later looks find what was
// canceled because of it.
func (r *reconciler) noteDifference(ctx context.Context, b *harvesterv1.VirtualMachineBackup) (string, error) {
	why, err := r.findDifference(ctx, b)
	if why != "" {
		b.Status.VolumeBackups[0].Error = &harvesterv1.Error{Time: ptr.To(metav1.NewTime(r.Clock.Now())), Message: &why}
	}
	return why, err
}

// findDifference says how the moment that the hypervisor has taken differs from what was planned, or "": a machine that
// was changed, or made again, while the backup waited.
func (r *reconciler) findDifference(ctx context.Context, b *harvesterv1.VirtualMachineBackup) (string, error) {
	if b.Status.Untracked != nil {
		return r.findOtherSnapshot(ctx, b)
	}
	job, err := reconcile.Find(ctx, r.live, types.NamespacedName{Namespace: b.Namespace, Name: b.Status.Group},
		&backupv1.VirtualMachineBackup{})
	if err != nil || job == nil || len(job.Status.IncludedVolumes) == 0 {
		return "", err
	}
	vm, err := reconcile.Find(ctx, r.live, types.NamespacedName{Namespace: b.Namespace, Name: b.Spec.Source.Name},
		definition.NewMachine())
	if err != nil {
		return "", err
	}
	if vm == nil || vm.GetUID() != *b.Status.SourceUID {
		return fmt.Sprintf("virtual machine %s was deleted, or made again, while the backup waited: create another backup", b.Spec.Source.Name), nil
	}
	return describeDifference(&b.Status, job.Status.IncludedVolumes), nil
}

// readUploads returns the DataUploads of the disks that are there.
func (r *reconciler) readUploads(ctx context.Context, b *harvesterv1.VirtualMachineBackup) (uploads, error) {
	all := uploads{}
	for _, v := range b.Status.VolumeBackups {
		key := types.NamespacedName{Namespace: b.Status.Location.Namespace, Name: v.DataUpload}
		if err := all.Read(ctx, r.children, b.UID, v.VolumeName, key, &velerov2.DataUpload{}); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// endFailed ends the backup, and says why in an event.
func (r *reconciler) endFailed(ctx context.Context, base, b *harvesterv1.VirtualMachineBackup, why string) error {
	setFailed(&b.Status, r.Clock.Now(), why)
	if err := r.writeStatus(ctx, base, b); err != nil {
		return err
	}
	r.events.Eventf(b, nil, corev1.EventTypeWarning, "Failed", "BackUp", "%s", why)
	return nil
}

func (r *reconciler) writeStatus(ctx context.Context, base, b *harvesterv1.VirtualMachineBackup) error {
	return reconcile.WriteStatus(ctx, r.cached, base, b)
}

// finishEnded removes what a backup that has ended needs no more, and then lets go of it in memory.
func (r *reconciler) finishEnded(ctx context.Context, b *harvesterv1.VirtualMachineBackup) (ctrl.Result, error) {
	if b.Labels[layout.LabelEnded] != "" {
		return ctrl.Result{}, nil
	}
	if left, err := r.deleteRequest(ctx, b); err != nil || left {
		return ctrl.Result{RequeueAfter: lookEvery}, err
	}
	if b.HasFailed() && (b.Status.Stopped != nil || isSnapshot(b)) {
		// What was read of the disks may be of no moment, and a snapshot may lack some: nothing of it stays.
		if _, err := r.deleteDisks(ctx, b, false); err != nil {
			return ctrl.Result{}, err
		}
	}
	if gone, err := r.removeHelpers(ctx, b); err != nil || !gone {
		return ctrl.Result{RequeueAfter: lookEvery}, err
	}
	return ctrl.Result{}, child.MarkEnded(ctx, r.cached, b)
}

// removeHelpers removes the scratch claim or the export, and the definition's Secret. It waits for the backup of the hypervisor, which
// uses the claim.
func (r *reconciler) removeHelpers(ctx context.Context, b *harvesterv1.VirtualMachineBackup) (gone bool, err error) {
	if b.Status.Group == "" || isSnapshot(b) {
		return true, nil
	}
	if err := r.endPull(ctx, b); err != nil {
		return false, err
	}
	group := types.NamespacedName{Namespace: b.Namespace, Name: b.Status.Group}
	running, err := reconcile.Find(ctx, r.live, group, &backupv1.VirtualMachineBackup{})
	if err != nil || running != nil {
		return false, err
	}
	for _, o := range []client.Object{definitionSecret(r.Namespace, b), scratchClaim(b), machineExport(b), pullToken(b)} {
		if err := r.children.Delete(ctx, b.UID, o); err != nil {
			return false, err
		}
	}
	if b.Status.Untracked == nil {
		return true, nil
	}
	_, err = r.deleteSnapshot(ctx, b) // it goes by itself from then on
	return err == nil, err
}
