package lostvolume

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/reconcile"
	"github.com/varvebackup/varve/internal/store/names"
)

const (
	// reasonLost is the reason of the events on PersistentVolumes.
	reasonLost = "VolumeLost"
	// pageSize is how many PersistentVolumes one request lists.
	pageSize = 500
	// quietIntervals is how many intervals the PersistentVolumes are not listed while nothing is gone.
	quietIntervals = 20
)

// Reconcile looks at all volumes.
func (r *reconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	var nodes longhornv1.NodeList
	var managers longhornv1.InstanceManagerList
	var replicas longhornv1.ReplicaList
	for _, list := range []client.ObjectList{&nodes, &managers, &replicas} {
		if err := r.cached.List(ctx, list, client.InNamespace(r.Namespace)); err != nil {
			return ctrl.Result{}, fmt.Errorf("list %T: %w", list, err)
		}
	}
	known := findPlaces(nodes.Items, managers.Items)
	lostReplicas := map[string]*longhornv1.Replica{}
	for i := range replicas.Items {
		spec := &replicas.Items[i].Spec
		if known.findLost(place{spec.NodeID, spec.DiskID}) != (lost{}) {
			lostReplicas[replicas.Items[i].Name] = &replicas.Items[i]
		}
	}
	quiet := len(lostReplicas) == 0 && len(r.lostSince) == 0
	if wait := r.listed.Add(r.Interval * quietIntervals).Sub(r.Clock.Now()); quiet && !r.listed.IsZero() && wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	volumes, err := r.listVolumes(ctx)
	if err != nil {
		return ctrl.Result{}, err
	}
	r.listed = r.Clock.Now()
	return r.advanceVolumes(ctx, &known, lostReplicas, volumes)
}

// listVolumes returns the store's PersistentVolumes by their handles.
func (r *reconciler) listVolumes(ctx context.Context) (map[string]*corev1.PersistentVolume, error) {
	all := map[string]*corev1.PersistentVolume{}
	newList := func() *corev1.PersistentVolumeList { return &corev1.PersistentVolumeList{} }
	err := reconcile.ListPages(ctx, r.live, pageSize, newList, func(page *corev1.PersistentVolumeList) error {
		for i := range page.Items {
			if pv := &page.Items[i]; isOurs(pv) {
				all[pv.Spec.CSI.VolumeHandle] = pv
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the PersistentVolumes: %w", err)
	}
	return all, nil
}

// advanceVolumes does the next step for each volume that is lost.
func (r *reconciler) advanceVolumes(
	ctx context.Context, known *places, replicas map[string]*longhornv1.Replica,
	volumes map[string]*corev1.PersistentVolume,
) (ctrl.Result, error) {
	seen := map[lost]bool{}
	var failed []error
	for handle, pv := range volumes {
		what := known.findLost(placeOf(pv))
		if what.kind == "disk" && replicas[handle] == nil {
			continue // of an earlier installation, whose disks may be added to spec.disks again
		}
		if what != (lost{}) && r.isGivenUp(what, seen) {
			failed = append(failed, r.finishVolume(ctx, pv, what))
		}
	}
	for handle, replica := range replicas {
		what := known.findLost(place{replica.Spec.NodeID, replica.Spec.DiskID})
		if r.isGivenUp(what, seen) && volumes[handle] == nil {
			failed = append(failed, r.removeObjects(ctx, replica, what))
		}
	}
	for what := range r.lostSince {
		if !seen[what] {
			delete(r.lostSince, what) // it is back, or nothing is left of it
		}
	}
	again := r.Interval
	if len(seen) == 0 {
		again *= quietIntervals
	}
	return reconcile.RetryConflict(ctrl.Result{RequeueAfter: again}, errors.Join(failed...))
}

// isGivenUp says whether something has been gone for long enough, and notes that it is gone.
func (r *reconciler) isGivenUp(what lost, seen map[lost]bool) bool {
	seen[what] = true
	since, ok := r.lostSince[what]
	if !ok {
		since = r.Clock.Now()
		r.lostSince[what] = since
	}
	return r.Clock.Since(since) >= r.GivenUp
}

// finishVolume does the next step for a PersistentVolume.
func (r *reconciler) finishVolume(ctx context.Context, pv *corev1.PersistentVolume, what lost) error {
	switch decideVolume(pv) {
	case deleteVolume:
		r.events.Eventf(pv, nil, corev1.EventTypeWarning, reasonLost, "Delete",
			"the %s %s is gone for good, so that the volume is deleted without it", what.kind, what.name)
		sameVersion := client.Preconditions{UID: ptr.To(pv.UID), ResourceVersion: ptr.To(pv.ResourceVersion)}
		if err := client.IgnoreNotFound(r.cached.Delete(ctx, pv, sameVersion)); err != nil {
			return fmt.Errorf("delete PersistentVolume %s: %w", pv.Name, err)
		}
	case releaseVolume:
		log.FromContext(ctx).Info("release a volume that is gone for good", "persistentVolume", pv.Name, "lost", what.kind,
			"name", what.name)
		base := pv.DeepCopy()
		pv.Finalizers = slices.DeleteFunc(pv.Finalizers, func(f string) bool { return f == finalizer })
		if err := client.IgnoreNotFound(r.cached.Patch(ctx, pv, reconcile.MergeFrom(base))); err != nil {
			return fmt.Errorf("remove the finalizer of PersistentVolume %s: %w", pv.Name, err)
		}
	case keepVolume:
	}
	return nil
}

// removeObjects deletes the Volume and the Replica of a volume that has no PersistentVolume, unless a claim waits for
// one.
func (r *reconciler) removeObjects(ctx context.Context, replica *longhornv1.Replica, what lost) error {
	key := client.ObjectKeyFromObject(replica)
	volume, err := reconcile.Find(ctx, r.live, key, &longhornv1.Volume{})
	if err != nil {
		return err
	}
	if volume != nil {
		claimed, err := r.hasClaim(ctx, volume)
		if err != nil || claimed {
			return err
		}
	}
	log.FromContext(ctx).Info("delete the objects of a volume that is gone for good", "volume", replica.Name,
		"lost", what.kind, "name", what.name)
	if volume != nil {
		uid := client.Preconditions{UID: ptr.To(volume.UID)}
		if err := client.IgnoreNotFound(r.cached.Delete(ctx, volume, uid)); err != nil {
			return fmt.Errorf("delete Volume %s: %w", volume.Name, err)
		}
	}
	uid := client.Preconditions{UID: ptr.To(replica.UID)}
	if err := client.IgnoreNotFound(r.cached.Delete(ctx, replica, uid)); err != nil {
		return fmt.Errorf("delete Replica %s: %w", replica.Name, err)
	}
	return nil
}

// hasClaim says whether the claim is there that a volume was made for.
func (r *reconciler) hasClaim(ctx context.Context, volume *longhornv1.Volume) (bool, error) {
	of := volume.Status.KubernetesStatus
	key := types.NamespacedName{Namespace: of.Namespace, Name: of.PVCName}
	if key.Name == "" {
		key.Namespace, key.Name, _ = strings.Cut(volume.Annotations[names.ClaimAnnotation], "/")
	}
	claim, err := reconcile.Find(ctx, r.live, key, &corev1.PersistentVolumeClaim{})
	if err != nil || claim == nil {
		return false, err
	}
	return names.VolumeHandle("pvc-"+string(claim.UID)) == volume.Name, nil
}
