package expose

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/reconcile"
)

// childMeta returns the metadata of what is made for owner. namespace is "" for what has none.
func childMeta(kind datamove.Kind, owner client.Object, namespace string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: namespace, Name: datamove.ChildName(kind, owner.GetUID()),
		Labels: map[string]string{datamove.LabelObject: string(owner.GetUID())},
		Annotations: map[string]string{datamove.AnnotationOwner: datamove.FormatOwner(kind,
			client.ObjectKeyFromObject(owner))},
	}
}

// isChild says that child was made for owner.
func isChild(owner, child client.Object) bool {
	return child.GetLabels()[datamove.LabelObject] == string(owner.GetUID())
}

func (a Access) findClaim(ctx context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	return reconcile.Find(ctx, a.Live, types.NamespacedName{Namespace: namespace, Name: name}, &corev1.PersistentVolumeClaim{})
}

func (a Access) findVolume(ctx context.Context, name string) (*corev1.PersistentVolume, error) {
	if name == "" {
		return nil, nil
	}
	return reconcile.Find(ctx, a.Live, types.NamespacedName{Name: name}, &corev1.PersistentVolume{})
}

// remove deletes o, unless that was done before, and reports whether it is gone. An object that has its name by then is not deleted.
func (a Access) remove(ctx context.Context, o client.Object) (gone bool, err error) {
	uid := o.GetUID()
	if o.GetDeletionTimestamp() == nil {
		err := a.Writer.Delete(ctx, o, client.Preconditions{UID: ptr.To(uid)})
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		if err != nil {
			return false, fmt.Errorf("delete %s: %w", describe(o), err)
		}
	}
	err = a.Live.Get(ctx, client.ObjectKeyFromObject(o), o)
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("get %s: %w", describe(o), err)
	}
	return o.GetUID() != uid, nil
}

// change patches o as edit says. The API server refuses that with a conflict if o has changed since it was read.
func change[T copier[T]](ctx context.Context, a Access, o T, edit func(T)) error {
	base := o.DeepCopy()
	edit(o)
	if err := a.Writer.Patch(ctx, o, reconcile.MergeFrom(base)); err != nil {
		return fmt.Errorf("change %s: %w", describe(base), err)
	}
	return nil
}

type copier[T any] interface {
	client.Object
	DeepCopy() T
}

// describe names an object by its kind.
func describe(o client.Object) string {
	kind := fmt.Sprintf("%T", o)
	kind = kind[strings.LastIndex(kind, ".")+1:]
	if o.GetNamespace() == "" {
		return kind + " " + o.GetName()
	}
	return kind + " " + o.GetNamespace() + "/" + o.GetName()
}

// describeRemoval says that something waits for o to be gone, and why it is still there as far as o tells.
func describeRemoval(o client.Object) string {
	if len(o.GetFinalizers()) == 0 {
		return describe(o) + " to be deleted"
	}
	return describe(o) + " to be deleted (kept by " + strings.Join(o.GetFinalizers(), ", ") + ")"
}
