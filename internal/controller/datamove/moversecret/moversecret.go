// Package moversecret keeps the Secrets by which mover pods read the backups of machines: each has the name of its pod, is in Varve's
// namespace, and belongs to the pod, so that it is there no longer than the pod. The driver makes the pods, and reads
// no Secrets.
//
// It also says which DataUploads are followed: those that Varve serves by its settings, and that are taken. All of it
// reads from the API server, and everything can be repeated.
package moversecret

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/datamove/settings"
	"github.com/varvebackup/varve/internal/reconcile"
)

// Keeper reads and writes the Secrets. It may be used by several goroutines.
type Keeper struct {
	// Live reads from the API server, not from a cache.
	Live   client.Reader
	Writer client.Writer
	// Namespace is Varve's own. Mover pods and the settings are there.
	Namespace string
	// Good keeps the settings while those in the cluster are bad.
	Good *settings.LastGood
}

// FindPod returns the mover pod of a DataUpload, or nil.
func (k Keeper) FindPod(ctx context.Context, upload *velerov2.DataUpload) (*corev1.Pod, error) {
	key := types.NamespacedName{Namespace: k.Namespace, Name: datamove.ChildName(datamove.Upload, upload.UID)}
	pod, err := reconcile.Find(ctx, k.Live, key, &corev1.Pod{})
	if err != nil || pod == nil {
		return nil, err
	}
	if pod.Labels[datamove.LabelObject] != string(upload.UID) || pod.Spec.ServiceAccountName != datamove.ServiceAccount || pod.DeletionTimestamp != nil {
		return nil, nil
	}
	return pod, nil
}

// Find returns the Secret that has the pod's name, or nil. It is the pod's own only if metav1.IsControlledBy says so.
func (k Keeper) Find(ctx context.Context, pod *corev1.Pod) (*corev1.Secret, error) {
	return reconcile.Find(ctx, k.Live, client.ObjectKeyFromObject(pod), &corev1.Secret{})
}

// Keep makes the Secret of a pod, or brings it up to date. have is what Find has returned. kept is false while the name belongs to another
// Secret: that of an earlier pod goes with it, and anything else must not be there.
func (k Keeper) Keep(ctx context.Context, upload *velerov2.DataUpload, pod *corev1.Pod, have *corev1.Secret, data map[string][]byte) (kept bool, err error) {
	switch {
	case have == nil:
		err = k.Writer.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: pod.Namespace, Name: pod.Name, Labels: map[string]string{datamove.LabelObject: string(upload.UID)},
				Annotations: map[string]string{datamove.AnnotationOwner: datamove.FormatOwner(datamove.Upload,
					client.ObjectKeyFromObject(upload))},
				OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(pod, corev1.SchemeGroupVersion.WithKind("Pod"))},
			},
			Data: data,
		})
		if apierrors.IsAlreadyExists(err) {
			return false, nil
		}
	case !metav1.IsControlledBy(have, pod):
		return false, nil
	case !equality.Semantic.DeepEqual(have.Data, data):
		have.Data = data
		err = k.Writer.Update(ctx, have)
	}
	if err != nil {
		return false, fmt.Errorf("write Secret %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return true, nil
}

// TellEnd writes into the Secret of a mover pod why the backup cannot be read any more. Nobody else says so to the pod.
func (k Keeper) TellEnd(ctx context.Context, upload *velerov2.DataUpload, why string) error {
	pod, err := k.FindPod(ctx, upload)
	if err != nil || pod == nil {
		return err // the exposer says so before there is another one
	}
	have, err := k.Find(ctx, pod)
	if err != nil || have == nil || !metav1.IsControlledBy(have, pod) || string(have.Data[datamove.EndpointEndedKey]) == why {
		return err
	}
	have.Data[datamove.EndpointEndedKey] = []byte(why)
	if err := k.Writer.Update(ctx, have); err != nil {
		return fmt.Errorf("write Secret %s/%s: %w", have.Namespace, have.Name, err)
	}
	return nil
}

// Settings returns the settings that hold now: bad ones change nothing.
func (k Keeper) Settings(ctx context.Context) (*settings.Settings, error) {
	current, err := k.Good.Read(ctx, k.Live, k.Namespace)
	if err != nil {
		return nil, err
	}
	return &current, nil
}

// Serves says whether Varve serves a DataUpload by these settings.
func Serves(current *settings.Settings, o *velerov2.DataUpload) bool {
	return current.Serves(o.Namespace) && current.ServesMover(o.Spec.DataMover)
}

// IsMoving says whether a DataUpload is taken, and neither ended nor canceled.
func IsMoving(o *velerov2.DataUpload) bool {
	switch o.Status.Phase {
	case velerov2.PhaseAccepted, velerov2.PhasePrepared, velerov2.PhaseInProgress:
		return IsTaken(o) && !o.Spec.Cancel && o.DeletionTimestamp == nil
	default:
		return false
	}
}

// IsTaken says whether a DataUpload is taken. Such a one is driven to its end, whatever the settings say by then.
func IsTaken(o *velerov2.DataUpload) bool {
	return o.Status.AcceptedByNode != "" && controllerutil.ContainsFinalizer(o, datamove.Finalizer)
}
