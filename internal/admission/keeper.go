package admission

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	admissionregv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/varvebackup/varve/internal/reconcile"
)

const (
	// lookEvery limits how long a replica serves a certificate that another one has renewed, and how long a
	// caBundle that somebody removed stays missing.
	lookEvery = time.Minute
	// retryAfter is the pause after a failure.
	retryAfter = 2 * time.Second
)

// authorityKey is the Secret's key for the authorities, as in a kubernetes.io/tls Secret that cert-manager makes.
const authorityKey = "ca.crt"

// keeper keeps the certificate valid. It is a Runnable of the manager.
type keeper struct {
	client client.Client
	clock  clock.WithTicker
	opts   Options

	serving atomic.Pointer[tls.Certificate]
}

// getCertificate implements tls.Config.GetCertificate.
func (k *keeper) getCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if c := k.serving.Load(); c != nil {
		return c, nil
	}
	return nil, errors.New("the admission webhook has no certificate yet")
}

// NeedLeaderElection implements manager.LeaderElectionRunnable. Every replica serves.
func (k *keeper) NeedLeaderElection() bool { return false }

// Start keeps the certificate and the caBundle up to date until ctx ends.
func (k *keeper) Start(ctx context.Context) error {
	for {
		wait := lookEvery
		if err := k.keepCertificate(ctx); err != nil && ctx.Err() == nil {
			// It is right to go on: the old certificate is still served, and the readiness check reports if there
			// is none.
			log.FromContext(ctx).Error(err, "keep the admission webhook's certificate")
			wait = retryAfter
		}
		select {
		case <-ctx.Done():
			return nil
		case <-k.clock.After(wait):
		}
	}
}

// keepCertificate makes the Secret, the memory and the caBundle agree on one valid certificate.
func (k *keeper) keepCertificate(ctx context.Context) error {
	b, err := k.ensureBundle(ctx)
	if err != nil {
		return err
	}
	pair, err := b.usableCertificate(k.clock.Now(), k.serviceHosts())
	if err != nil {
		return err
	}
	// Trust before use: the API server must know the authority before it first meets the certificate.
	if err := k.writeCABundle(ctx, b.authorities); err != nil {
		return err
	}
	k.serving.Store(pair)
	return nil
}

func (k *keeper) serviceHosts() []string {
	service := k.opts.Service + "." + k.opts.Namespace + ".svc"
	return append([]string{service, service + ".cluster.local"}, k.opts.ExtraHosts...)
}

// ensureBundle returns the Secret's bundle, and renews it first if that is due.
func (k *keeper) ensureBundle(ctx context.Context) (*bundle, error) {
	key := types.NamespacedName{Namespace: k.opts.Namespace, Name: k.opts.Secret}
	secret := &corev1.Secret{}
	err := k.client.Get(ctx, key, secret)
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return nil, fmt.Errorf("read secret %s: %w", key, err)
	}
	have := &bundle{certificate: secret.Data[corev1.TLSCertKey], key: secret.Data[corev1.TLSPrivateKeyKey], authorities: secret.Data[authorityKey]}
	if !missing {
		if _, err := have.usableCertificate(k.clock.Now(), k.serviceHosts()); err == nil {
			return have, nil
		}
	}
	want, err := renewBundle(k.clock.Now(), k.serviceHosts(), have)
	if err != nil {
		return nil, err
	}
	data := map[string][]byte{corev1.TLSCertKey: want.certificate, corev1.TLSPrivateKeyKey: want.key, authorityKey: want.authorities}
	if missing {
		secret = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}, Type: corev1.SecretTypeTLS, Data: data}
		err = k.client.Create(ctx, secret)
	} else {
		secret.Data = data
		err = k.client.Update(ctx, secret) // carries the resource version that was read
	}
	if err != nil {
		// A conflict means that another replica renewed it. The retry takes that certificate over.
		return nil, fmt.Errorf("write secret %s: %w", key, err)
	}
	return want, nil
}

// writeCABundle writes the authorities into the webhook configuration.
func (k *keeper) writeCABundle(ctx context.Context, authorities []byte) error {
	configuration := &admissionregv1.ValidatingWebhookConfiguration{}
	if err := k.client.Get(ctx, types.NamespacedName{Name: k.opts.Configuration}, configuration); err != nil {
		return fmt.Errorf("read ValidatingWebhookConfiguration %s: %w", k.opts.Configuration, err)
	}
	before := configuration.DeepCopy()
	changed := false
	for i := range configuration.Webhooks {
		if c := &configuration.Webhooks[i].ClientConfig; !bytes.Equal(c.CABundle, authorities) {
			c.CABundle, changed = authorities, true
		}
	}
	if !changed {
		return nil
	}
	if err := k.client.Patch(ctx, configuration, reconcile.MergeFrom(before)); err != nil {
		return fmt.Errorf("write the caBundle of ValidatingWebhookConfiguration %s: %w", k.opts.Configuration, err)
	}
	return nil
}
