// Package child makes the objects that a backup or a restore of a whole machine needs. Each has a name that follows
// from its owner, and a label with the owner's UID, by which it is found again after a restart and told from a
// stranger's. Owner references are not enough: some of these objects are in another namespace than their owner.
package child

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Maker makes and deletes the children of one kind of owner.
type Maker struct {
	Writer client.Writer
	// Live reads from the API server, not from a cache.
	Live client.Reader
	// Label is the label that has the owner's UID.
	Label string
}

// Make makes an object that is the owner's alone, if it is not there. refused says why the owner can never have it: an
// object of that name is somebody else's, or the API server does not accept it, for which a quota is the usual reason.
func (m Maker) Make(ctx context.Context, owner types.UID, o client.Object) (refused string, err error) {
	key := client.ObjectKeyFromObject(o)
	labels := o.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels[m.Label] = string(owner)
	o.SetLabels(labels)
	have := o.DeepCopyObject().(client.Object) //nolint:forcetypeassert // a copy of a client.Object
	err = m.Writer.Create(ctx, o)
	switch {
	case err == nil:
		return "", nil
	case !apierrors.IsAlreadyExists(err) && !IsFinal(err):
		return "", fmt.Errorf("create %s %s: %w", kindOf(o), key, err)
	}
	// A webhook may refuse a second object before the API server says that there is one.
	refusal := err
	switch err := m.Live.Get(ctx, key, have); {
	case apierrors.IsNotFound(err) && IsFinal(refusal):
		return fmt.Sprintf("create %s %s: %v", kindOf(o), key, refusal), nil
	case apierrors.IsNotFound(err):
		return "", apierrors.NewConflict(schema.GroupResource{Resource: kindOf(o)}, key.Name, err) // it has just gone: try again
	case err != nil:
		return "", fmt.Errorf("get %s %s: %w", kindOf(o), key, err)
	case have.GetLabels()[m.Label] != string(owner):
		return fmt.Sprintf("%s %s is in the way, and was made by somebody else: delete it, and try again under another name", kindOf(o), key), nil
	}
	return "", nil
}

// IsFinal says whether the API server will not accept an object however often it is asked: by its schema, a policy, a
// quota or a missing right.
func IsFinal(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) ||
		apierrors.IsRequestEntityTooLargeError(err)
}

// Delete deletes an object if it is there and the owner's.
func (m Maker) Delete(ctx context.Context, owner types.UID, o client.Object) error {
	key := client.ObjectKeyFromObject(o)
	err := m.Live.Get(ctx, key, o)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("get %s %s: %w", kindOf(o), key, err)
	case o.GetLabels()[m.Label] != string(owner):
		return nil
	}
	return m.Remove(ctx, o)
}

// Remove deletes an object, unless another one has its name by now, or it is being deleted already.
func (m Maker) Remove(ctx context.Context, o client.Object) error {
	return m.deleteObject(ctx, o, client.Preconditions{UID: ptr.To(o.GetUID())})
}

// RemoveUnchanged is Remove for an object that has not changed since it was read. If it has, the error is a conflict.
func (m Maker) RemoveUnchanged(ctx context.Context, o client.Object) error {
	return m.deleteObject(ctx, o,
		client.Preconditions{UID: ptr.To(o.GetUID()), ResourceVersion: ptr.To(o.GetResourceVersion())})
}

func (m Maker) deleteObject(ctx context.Context, o client.Object, only client.Preconditions) error {
	if o.GetDeletionTimestamp() != nil {
		return nil
	}
	if err := m.Writer.Delete(ctx, o, only); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete %s %s: %w", kindOf(o), client.ObjectKeyFromObject(o), err)
	}
	return nil
}

// kindOf names the kind of an object, for people.
func kindOf(o client.Object) string {
	if kind := o.GetObjectKind().GroupVersionKind().Kind; kind != "" {
		return kind
	}
	text := fmt.Sprintf("%T", o)
	return text[strings.LastIndexByte(text, '.')+1:]
}
