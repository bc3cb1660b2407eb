package imagebackup

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/controller/child"
	"github.com/varvebackup/varve/internal/controller/store/storageplace"
	"github.com/varvebackup/varve/internal/datamove/settings"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/reconcile"
	"github.com/varvebackup/varve/internal/store/names"
)

// Options are what Setup needs besides the manager.
type Options struct {
	// Namespace is Varve's own. Only its backups are served.
	Namespace string
	// Clock tells the time. Default: the machine's.
	Clock clock.PassiveClock
	// ControllerSuffix distinguishes the controllers of two managers in one process, for example in tests.
	ControllerSuffix string
}

type reconciler struct {
	Options
	cached  client.Client
	live    client.Reader
	objects child.Maker
	// settings are those of the data mover, whose pods read images.
	settings settings.LastGood
}

// Setup adds the controller to mgr. Its cache needs what backingimage.CachedObjects returns.
func Setup(mgr ctrl.Manager, o Options) error {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	r := &reconciler{Options: o, cached: mgr.GetClient(), live: mgr.GetAPIReader()}
	r.objects = child.Maker{Writer: r.cached, Live: r.live, Label: LabelBackup}
	of := func(uses func(*longhornv1.BackupBackingImage, client.Object) bool) handler.EventHandler {
		return handler.EnqueueRequestsFromMapFunc(r.backupsWhere(uses))
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("imagebackup"+o.ControllerSuffix).
		For(&longhornv1.BackupBackingImage{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Owns(&corev1.PersistentVolumeClaim{}).
		Watches(&velerov2.DataUpload{}, of(func(b *longhornv1.BackupBackingImage, o client.Object) bool {
			return o.GetName() == names.ReaderHandle(string(b.UID)) // the cache does not know owners
		}), builder.WithPredicates(reconcile.MoreThanVersion())).
		Watches(&longhornv1.BackingImage{}, of(func(b *longhornv1.BackupBackingImage, o client.Object) bool {
			return o.GetName() == b.Spec.BackingImage && !b.Status.State.Ended()
		})).
		WithOptions(reconcile.Options(reconcile.ControllerWorkers)).
		Complete(r)
}

// backupsWhere returns a function that requests the backups that use an object.
func (r *reconciler) backupsWhere(
	uses func(*longhornv1.BackupBackingImage, client.Object) bool,
) func(context.Context, client.Object) []ctrl.Request {
	return func(ctx context.Context, o client.Object) []ctrl.Request {
		if o.GetNamespace() != r.Namespace {
			return nil
		}
		var list longhornv1.BackupBackingImageList
		if err := r.cached.List(ctx, &list, client.InNamespace(r.Namespace)); err != nil {
			log.FromContext(ctx).Error(fmt.Errorf("list the BackupBackingImages: %w", err), "a change is not seen")
			return nil
		}
		var requests []ctrl.Request
		for i := range list.Items {
			if uses(&list.Items[i], o) {
				requests = append(requests, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
			}
		}
		return requests
	}
}

// Reconcile advances one backup.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	result, err := r.advance(ctx, req.NamespacedName)
	if err != nil && !apierrors.IsConflict(err) {
		err = fmt.Errorf("BackupBackingImage %s: %w", req.NamespacedName, err)
	}
	return reconcile.RetryConflict(result, err)
}

// advance reads everything, decides, and writes the status before it touches what was made: each pass goes on from what
// was written.
func (r *reconciler) advance(ctx context.Context, key types.NamespacedName) (ctrl.Result, error) {
	b, err := reconcile.Find(ctx, r.live, key, &longhornv1.BackupBackingImage{})
	if err != nil || b == nil {
		return ctrl.Result{}, err
	}
	if b.DeletionTimestamp != nil && !slices.Contains(b.Finalizers, longhornv1.BackupBackingImageFinalizer) {
		return ctrl.Result{}, nil
	}
	in, err := r.readInput(ctx, b)
	if err != nil {
		return ctrl.Result{}, err
	}
	p := decide(in)
	if p.finalizer {
		err := reconcile.WriteFinalizer(ctx, r.cached, b, longhornv1.BackupBackingImageFinalizer, true)
		if err != nil {
			return ctrl.Result{}, err
		}
	}
	if p.check != "" { // before the status, after which nobody looks at the DataUpload again
		if err := r.requestCheck(ctx, b, p.check); err != nil {
			return ctrl.Result{}, err
		}
	}
	base := b.DeepCopy()
	b.Status = p.status
	if err := reconcile.WriteStatus(ctx, r.cached, base, b); err != nil {
		return ctrl.Result{}, err
	}
	if err := r.carryOut(ctx, b, in, p); err != nil {
		return ctrl.Result{}, err
	}
	if !p.finalizer {
		err := reconcile.WriteFinalizer(ctx, r.cached, b, longhornv1.BackupBackingImageFinalizer, false)
		if err != nil {
			return ctrl.Result{}, err
		}
	}
	return ctrl.Result{RequeueAfter: p.next}, nil
}

// readInput reads what decide needs.
func (r *reconciler) readInput(ctx context.Context, b *longhornv1.BackupBackingImage) (*input, error) {
	in := &input{now: r.Clock.Now(), backup: b}
	if err := r.readChildren(ctx, b, &in.children); err != nil {
		return nil, err
	}
	if b.DeletionTimestamp != nil || b.Status.State.Ended() || in.children.upload != nil {
		return in, nil // nothing else matters
	}
	key := types.NamespacedName{Namespace: b.Namespace, Name: b.Spec.BackingImage}
	var err error
	if in.image, err = reconcile.Find(ctx, r.live, key, &longhornv1.BackingImage{}); err != nil {
		return nil, err
	}
	var locations velerov1.BackupStorageLocationList
	var nodes longhornv1.NodeList
	var managers longhornv1.InstanceManagerList
	for _, read := range []struct {
		from client.Reader
		list client.ObjectList
	}{{r.live, &locations}, {r.cached, &nodes}, {r.cached, &managers}} {
		if err := read.from.List(ctx, read.list, client.InNamespace(r.Namespace)); err != nil {
			return nil, fmt.Errorf("list %T: %w", read.list, err)
		}
	}
	in.locations, in.nodes, in.managers = locations.Items, nodes.Items, managers.Items
	if err := r.readKubeNodes(ctx, in); err != nil {
		return nil, err
	}
	if l := in.chooseLocation(); l != nil {
		in.storage, err = storageplace.Read(ctx, r.live, r.Namespace, l)
	}
	return in, err
}

// readKubeNodes reads on which nodes the data mover's pods can run.
func (r *reconciler) readKubeNodes(ctx context.Context, in *input) error {
	var kubeNodes corev1.NodeList
	if err := r.live.List(ctx, &kubeNodes); err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	current, err := r.settings.Read(ctx, r.live, r.Namespace)
	if err != nil {
		return err
	}
	in.kubeNodes, in.tolerations = kubeNodes.Items, current.Pod.Tolerations
	return nil
}

// readChildren reads what was made for a backup from the API server, because the cache may be behind this controller's
// own writes.
func (r *reconciler) readChildren(ctx context.Context, b *longhornv1.BackupBackingImage, c *children) (err error) {
	key := types.NamespacedName{Namespace: b.Namespace, Name: names.ReaderHandle(string(b.UID))}
	if c.upload, err = reconcile.Find(ctx, r.live, key, &velerov2.DataUpload{}); err != nil {
		return err
	}
	if c.claim, err = reconcile.Find(ctx, r.live, key, &corev1.PersistentVolumeClaim{}); err != nil {
		return err
	}
	volume := types.NamespacedName{Name: key.Name}
	if c.volume, err = reconcile.Find(ctx, r.live, volume, &corev1.PersistentVolume{}); err != nil {
		return err
	}
	for _, o := range c.listObjects() {
		if o.GetLabels()[LabelBackup] != string(b.UID) || o.GetNamespace() != "" && !metav1.IsControlledBy(o, b) {
			return errclass.Errorf(errclass.Conflict, "%T %s is in the way, and was made by somebody else: delete it", o,
				o.GetName())
		}
	}
	return nil
}

// listObjects lists the objects that are there.
func (c *children) listObjects() (all []client.Object) {
	if c.upload != nil {
		all = append(all, c.upload)
	}
	if c.claim != nil {
		all = append(all, c.claim)
	}
	if c.volume != nil {
		all = append(all, c.volume)
	}
	return all
}

// carryOut makes or removes the objects of a backup.
func (r *reconciler) carryOut(ctx context.Context, b *longhornv1.BackupBackingImage, in *input, p *plan) error {
	c := &in.children
	switch p.do {
	case makeChildren:
		return r.makeChildren(ctx, b, c, p.from)
	case removeUpload:
		return r.removeObjects(ctx, c.upload)
	case removeVolume:
		return r.removeObjects(ctx, (&children{claim: c.claim, volume: c.volume}).listObjects()...)
	case nothing:
	}
	return nil
}

// makeChildren makes what is missing, one after the other: the volume names the claim's UID, so that no other claim of
// that name can bind it.
func (r *reconciler) makeChildren(
	ctx context.Context, b *longhornv1.BackupBackingImage, c *children, from place,
) error {
	claim := c.claim
	if claim == nil {
		claim = newClaim(b)
		if err := r.createObject(ctx, claim); err != nil {
			return err
		}
	}
	if claim.DeletionTimestamp != nil || claim.UID == "" {
		return nil // the next look makes another one, or sees the one whose creation was not answered
	}
	switch volume := c.volume; {
	case volume == nil:
		if err := r.createObject(ctx, newVolume(b, claim, from)); err != nil {
			return err
		}
	case volume.DeletionTimestamp != nil:
		return nil
	case volume.Spec.ClaimRef == nil || volume.Spec.ClaimRef.UID != claim.UID:
		return r.removeObjects(ctx, volume) // it belongs to an earlier claim
	}
	if claim.Status.Phase != corev1.ClaimBound {
		return nil
	}
	return r.createObject(ctx, newUpload(b))
}

// requestCheck has the store of a disk read its copy of the image at once, in place of some day in the next week.
func (r *reconciler) requestCheck(ctx context.Context, b *longhornv1.BackupBackingImage, disk string) error {
	key := types.NamespacedName{Namespace: b.Namespace, Name: b.Spec.BackingImage}
	image, err := reconcile.Find(ctx, r.live, key, &longhornv1.BackingImage{})
	annotation := longhornv1.AnnotationCheckCopy + disk
	if err != nil || image == nil || image.Status.UUID != b.Status.ImageUUID ||
		image.Annotations[annotation] == string(b.UID) {
		return err
	}
	base := image.DeepCopy()
	metav1.SetMetaDataAnnotation(&image.ObjectMeta, annotation, string(b.UID))
	if err := client.IgnoreNotFound(r.cached.Patch(ctx, image, reconcile.MergeFrom(base))); err != nil {
		return fmt.Errorf("have the copy of BackingImage %s on disk %s checked: %w", image.Name, disk, err)
	}
	return nil
}

func (r *reconciler) createObject(ctx context.Context, o client.Object) error {
	if err := r.cached.Create(ctx, o); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create %T %s: %w", o, o.GetName(), err)
	}
	return nil
}

func (r *reconciler) removeObjects(ctx context.Context, all ...client.Object) error {
	for _, o := range all {
		if err := r.objects.Remove(ctx, o); err != nil {
			return err
		}
	}
	return nil
}
