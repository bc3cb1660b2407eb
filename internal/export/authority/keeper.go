package authority

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// attempts is how often a Keeper reads the Secret when others write it at the same time.
const attempts = 5

// Store is where the Secret is. Reads must not come from a cache.
type Store interface {
	Get(ctx context.Context, key client.ObjectKey, into client.Object, opts ...client.GetOption) error
	Create(ctx context.Context, object client.Object, opts ...client.CreateOption) error
	Update(ctx context.Context, object client.Object, opts ...client.UpdateOption) error
}

// LiveStore is a Store of what a manager has: a reader of the API server, and a writer.
type LiveStore struct {
	client.Reader
	client.Writer
}

// Keeper keeps the authorities in a Secret. It may be used by several goroutines and processes at a time.
type Keeper struct {
	store  Store
	secret types.NamespacedName
	clock  clock.PassiveClock
}

// NewKeeper returns a keeper of the authorities in secret, which it creates when there is none.
func NewKeeper(store Store, secret types.NamespacedName, c clock.PassiveClock) *Keeper {
	return &Keeper{store: store, secret: secret, clock: c}
}

// Issuer returns the present issuer. If the authorities are due for rotation, it writes the new ones first.
func (k *Keeper) Issuer(ctx context.Context) (*Issuer, error) {
	var err error
	for range attempts {
		var issuer *Issuer
		issuer, err = k.readAndRotate(ctx)
		if err == nil {
			return issuer, nil
		}
		if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			return nil, err
		}
		// Somebody else has written it. Read what they have made of it.
	}
	return nil, err
}

func (k *Keeper) readAndRotate(ctx context.Context) (*Issuer, error) {
	secret := &corev1.Secret{}
	err := k.store.Get(ctx, k.secret, secret)
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return nil, fmt.Errorf("read secret %s: %w", k.secret, err)
	}
	now := k.clock.Now()
	s, changed, err := rotate(decodeState(secret.Data), now)
	if err != nil {
		return nil, err
	}
	if changed {
		if err := k.write(ctx, secret, missing, s); err != nil {
			return nil, fmt.Errorf("write secret %s: %w", k.secret, err)
		}
	}
	return &Issuer{state: s, now: now}, nil
}

// write stores s. An update carries the resource version that was read.
func (k *Keeper) write(ctx context.Context, secret *corev1.Secret, missing bool, s state) error {
	data, err := s.encode()
	if err != nil {
		return err
	}
	if missing {
		return k.store.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: k.secret.Namespace, Name: k.secret.Name},
			Type:       corev1.SecretTypeTLS, Data: data,
		})
	}
	secret.Data = data
	return k.store.Update(ctx, secret)
}
