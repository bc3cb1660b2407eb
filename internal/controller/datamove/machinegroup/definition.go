package machinegroup

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/reconcile"
)

// Reasons of the events of DataUploads whose definition cannot be had. Two, because the notes of one reason are merged.
const (
	eventDefinitionMissing = "DefinitionMissing"
	eventDefinitionInvalid = "DefinitionInvalid"
)

// definitionError says why the definition that DataUploads name cannot be had now. reason is that of the event.
type definitionError struct{ reason, text string }

func (e *definitionError) Error() string { return e.text }

// readDefinition returns the definition with this UID. If it cannot be had, the error is a *definitionError.
func (r *reconciler) readDefinition(ctx context.Context, uid string) ([]byte, error) {
	key := types.NamespacedName{Namespace: r.Namespace, Name: datamove.DefinitionSecret(uid)}
	secret, err := reconcile.Find(ctx, r.live, key, &corev1.Secret{})
	switch {
	case err != nil:
		return nil, err
	case secret == nil:
		return nil, &definitionError{
			eventDefinitionMissing,
			fmt.Sprintf("Secret %s with the definition of the machine does not exist", key),
		}
	case secret.Type != datamove.DefinitionSecretType:
		return nil, &definitionError{
			eventDefinitionInvalid,
			fmt.Sprintf("Secret %s has the type %q: a definition of a machine has the type %q",
				key, secret.Type, datamove.DefinitionSecretType),
		}
	case len(secret.Data[datamove.DefinitionKey]) == 0:
		return nil, &definitionError{
			eventDefinitionInvalid,
			fmt.Sprintf("Secret %s has nothing in its key %q, where the definition of the machine belongs",
				key, datamove.DefinitionKey),
		}
	}
	return secret.Data[datamove.DefinitionKey], nil
}

// checkDefinition says why the definition with this UID cannot be had; nil: it is there, or the UID is "".
func (r *reconciler) checkDefinition(ctx context.Context, uid string) (*definitionError, error) {
	if uid == "" {
		return nil, nil
	}
	_, err := r.readDefinition(ctx, uid)
	var missing *definitionError
	if errors.As(err, &missing) {
		return missing, nil
	}
	return nil, err
}

// definitionFor returns the definition for a mover pod. If it cannot be had, an event says so and the error is a
// *definitionError. have is the Secret of the pod's name: a definition that the pod was given stays, even when its own
// Secret has gone.
func (r *reconciler) definitionFor(ctx context.Context, m *member, pod *corev1.Pod, have *corev1.Secret) ([]byte, error) {
	if have != nil && metav1.IsControlledBy(have, pod) && len(have.Data[datamove.DefinitionKey]) > 0 {
		return have.Data[datamove.DefinitionKey], nil
	}
	definition, err := r.readDefinition(ctx, m.disk.Definition)
	var missing *definitionError
	if errors.As(err, &missing) {
		r.events.Eventf(m.upload, nil, corev1.EventTypeWarning, missing.reason, "BackUp", "%s", missing.text)
	}
	return definition, err
}
