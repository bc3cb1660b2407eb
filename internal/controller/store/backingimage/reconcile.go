package backingimage

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/diagnosis"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/reconcile"
	"github.com/varvebackup/varve/internal/store/names"
)

// Reconcile advances one image.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	result, err := r.advance(ctx, req.NamespacedName)
	if err != nil && !apierrors.IsConflict(err) {
		err = fmt.Errorf("BackingImage %s: %w", req.NamespacedName, err)
	}
	return reconcile.RetryConflict(result, err)
}

// advance reads everything, decides, and writes the status before the spec, and both before it touches the source: each
// pass goes on from what was written.
func (r *reconciler) advance(ctx context.Context, key types.NamespacedName) (ctrl.Result, error) {
	image, err := reconcile.Find(ctx, r.live, key, &longhornv1.BackingImage{})
	if err == nil && image == nil {
		r.deletions.forget(key)
		r.seals.forget(key)
	}
	if err != nil || image == nil {
		return ctrl.Result{}, err
	}
	in, err := r.readInput(ctx, image)
	if err != nil {
		return ctrl.Result{}, err
	}
	p := decide(in)
	if p.finalizer {
		err := reconcile.WriteFinalizer(ctx, r.cached, image, longhornv1.BackingImageFinalizer, true)
		if err != nil {
			return ctrl.Result{}, err
		}
	}
	base := image.DeepCopy()
	image.Status = p.status
	if err := reconcile.WriteStatus(ctx, r.cached, base, image); err != nil {
		return ctrl.Result{}, err
	}
	recordEvents(r.events, image, in.listEvents(&base.Status, &p.status))
	if err := r.writeDisks(ctx, image, p.disks); err != nil {
		return ctrl.Result{}, err
	}
	if err := r.carryOut(ctx, image, in, p); err != nil {
		return ctrl.Result{}, err
	}
	if !p.finalizer {
		err := reconcile.WriteFinalizer(ctx, r.cached, image, longhornv1.BackingImageFinalizer, false)
		if err != nil {
			return ctrl.Result{}, err
		}
	}
	return ctrl.Result{RequeueAfter: p.next}, nil
}

// readInput reads what a decision follows from: the image and the source from the API server, because the cache may be
// behind this controller's own writes, and what the stores write from the cache.
func (r *reconciler) readInput(ctx context.Context, image *longhornv1.BackingImage) (*input, error) {
	in := &input{Options: r.Options, now: r.Clock.Now(), image: image, newUUID: string(uuid.NewUUID())}
	var nodes longhornv1.NodeList
	var managers longhornv1.InstanceManagerList
	var replicas longhornv1.ReplicaList
	var volumes longhornv1.VolumeList
	current := client.Reader(r.cached)
	if image.DeletionTimestamp != nil {
		current = r.live // a clone or a report that is a moment old keeps the image
	}
	for _, read := range []struct {
		from client.Reader
		list client.ObjectList
	}{{r.cached, &nodes}, {current, &managers}, {r.cached, &replicas}, {current, &volumes}} {
		if err := read.from.List(ctx, read.list, client.InNamespace(r.Namespace)); err != nil {
			return nil, fmt.Errorf("list %T: %w", read.list, err)
		}
	}
	if image.DeletionTimestamp != nil {
		in.reportedSince = r.deletions.reportedSince(image, managers.Items)
	}
	in.addStores(nodes.Items, managers.Items)
	r.noteSeal(in)
	for i := range replicas.Items {
		if replicas.Items[i].Spec.BackingImage == image.Name {
			in.replicas = append(in.replicas, replicas.Items[i])
		}
	}
	for i := range volumes.Items {
		if volumes.Items[i].Spec.BackingImage == image.Name {
			in.volumes = append(in.volumes, volumes.Items[i].Name)
		}
	}
	slices.Sort(in.volumes)
	if err := r.readOrigin(ctx, image, &in.origin); err != nil {
		return nil, err
	}
	return in, r.readSource(ctx, image, &in.source)
}

// noteSeal notes what the store of a first copy has reported since the source was written.
func (r *reconciler) noteSeal(in *input) {
	key, s := client.ObjectKeyFromObject(in.image), &in.image.Status
	if s.FirstCopyWrittenTime == nil {
		r.seals.forget(key)
		return
	}
	if report, ok := in.freshReport(s.V2FirstCopyDisk); ok {
		in.sealOverdue = r.seals.isOverdue(key, s.UUID, s.V2FirstCopyDisk, report.store.heard, in.now)
	}
}

// readSource reads what the source has. An image that is ready has none, except in the pass in which it got ready.
func (r *reconciler) readSource(ctx context.Context, image *longhornv1.BackingImage, s *sourceObjects) error {
	if image.Status.UUID == "" {
		return nil
	}
	key := types.NamespacedName{Namespace: image.Namespace, Name: names.SourceHandle(image.Status.UUID)}
	var err error
	if s.pod, err = reconcile.Find(ctx, r.live, key, &corev1.Pod{}); err != nil {
		return err
	}
	if image.Spec.SourceType == longhornv1.SourceRestore {
		if s.download, err = reconcile.Find(ctx, r.live, key, &velerov2.DataDownload{}); err != nil {
			return err
		}
	}
	if s.claim, err = reconcile.Find(ctx, r.live, key, &corev1.PersistentVolumeClaim{}); err != nil {
		return err
	}
	volume := types.NamespacedName{Name: key.Name}
	if s.volume, err = reconcile.Find(ctx, r.live, volume, &corev1.PersistentVolume{}); err != nil {
		return err
	}
	for _, o := range s.listObjects() {
		if !isOurs(o, image) {
			return errclass.Errorf(errclass.Conflict, "%T %s is in the way, and was made by somebody else: delete it", o,
				o.GetName())
		}
	}
	if s.pod != nil && s.pod.Status.Phase == corev1.PodPending {
		s.waitsFor = diagnosis.WhyNotRunning(ctx, r.live, s.pod)
	}
	return nil
}

// listObjects lists the objects that are there, in the order in which they go.
func (s *sourceObjects) listObjects() (all []client.Object) {
	if s.pod != nil {
		all = append(all, s.pod)
	}
	if s.download != nil {
		all = append(all, s.download)
	}
	if s.claim != nil {
		all = append(all, s.claim)
	}
	if s.volume != nil {
		all = append(all, s.volume)
	}
	return all
}

func isOurs(o client.Object, image *longhornv1.BackingImage) bool {
	return o.GetLabels()[LabelImage] == image.Status.UUID && (o.GetNamespace() == "" || metav1.IsControlledBy(o, image))
}

func (r *reconciler) writeDisks(
	ctx context.Context, image *longhornv1.BackingImage, disks map[string]*longhornv1.BackingImageDiskFileSpec,
) error {
	if equality.Semantic.DeepEqual(image.Spec.DiskFileSpecMap, disks) {
		return nil
	}
	base := image.DeepCopy()
	image.Spec.DiskFileSpecMap = disks
	if err := r.cached.Patch(ctx, image, reconcile.MergeFrom(base)); err != nil {
		return fmt.Errorf("write spec.diskFileSpecMap: %w", err)
	}
	return nil
}

// carryOut makes or removes the objects of the source.
func (r *reconciler) carryOut(ctx context.Context, image *longhornv1.BackingImage, in *input, p *plan) error {
	switch p.source {
	case makeSource:
		return r.makeSource(ctx, image, &in.source, p.sourceNode)
	case removeSource, abandonSource:
		if in.source.download != nil {
			return r.removeDownload(ctx, in.source.download, p.source == abandonSource)
		}
		return r.removeObjects(ctx, in.source.listObjects(), p.source == abandonSource)
	case keepSource:
	}
	return nil
}

// makeSource makes what is missing of the source, one after the other: the volume names the claim's UID, so that no
// other claim of that name can bind it.
func (r *reconciler) makeSource(
	ctx context.Context, image *longhornv1.BackingImage, s *sourceObjects, node string,
) error {
	claim := s.claim
	if claim == nil {
		claim = newSourceClaim(image)
		if err := r.createObject(ctx, claim); err != nil {
			return err
		}
	}
	if claim.DeletionTimestamp != nil {
		return nil // the next look makes another one
	}
	switch volume := s.volume; {
	case volume == nil:
		if err := r.createObject(ctx, newSourceVolume(image, claim, node)); err != nil {
			return err
		}
	case volume.DeletionTimestamp != nil:
		return nil
	case volume.Spec.ClaimRef == nil || volume.Spec.CSI == nil || volume.Spec.ClaimRef.UID != claim.UID ||
		volume.Spec.CSI.VolumeAttributes[names.ContextDisk] != image.Status.V2FirstCopyDisk:
		return r.removeObjects(ctx, []client.Object{volume}, false) // it belongs to an earlier claim
	}
	if s.pod != nil || claim.Status.Phase != corev1.ClaimBound {
		return nil // the scheduler would put a pod aside for seconds whose claim is not bound
	}
	if image.Spec.SourceType != longhornv1.SourceRestore {
		return r.createObject(ctx, newSourcePod(image, &r.Options))
	}
	if s.download != nil {
		return nil
	}
	download, err := newDownload(image)
	if err != nil {
		return err
	}
	return r.createObject(ctx, download)
}

func (r *reconciler) createObject(ctx context.Context, o client.Object) error {
	if err := r.cached.Create(ctx, o); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create %T %s: %w", o, o.GetName(), err)
	}
	return nil
}

func (r *reconciler) removeObjects(ctx context.Context, all []client.Object, force bool) error {
	for _, o := range all {
		options := []client.DeleteOption{client.Preconditions{UID: ptr.To(o.GetUID())}}
		_, isPod := o.(*corev1.Pod)
		switch {
		case force && isPod:
			options = append(options, client.GracePeriodSeconds(0))
		case o.GetDeletionTimestamp() != nil:
			continue
		}
		if err := r.cached.Delete(ctx, o, options...); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete %T %s: %w", o, o.GetName(), err)
		}
	}
	return nil
}
