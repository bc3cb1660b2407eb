package certificate

import (
	"cmp"
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export/authority"
	"github.com/varvebackup/varve/internal/reconcile"
	"github.com/varvebackup/varve/internal/store/names"
)

const (
	// Secret is the Secret with tls.crt, tls.key and ca.crt.
	Secret = "varve-store-tls"
	// AuthoritySecret is the Secret with the authorities.
	AuthoritySecret = "varve-store-authority"
	// lookInterval is the time between looks at the Secret and at the announcement. Nothing tells when either changes, or
	// when somebody installs the announcement's kind.
	lookInterval = time.Minute
	// labelManager and manager mark the Secret that this package writes.
	labelManager, manager = "app.kubernetes.io/managed-by", "varve-controller"
)

// Options are what Setup needs besides the manager.
type Options struct {
	// Namespace is Varve's own.
	Namespace string
	// Clock tells the time. Default: the machine's.
	Clock clock.PassiveClock
	// Interval is the time between looks. Default: a minute.
	Interval time.Duration
	// ControllerSuffix distinguishes the controllers of two managers in one process, for example in tests.
	ControllerSuffix string
}

type reconciler struct {
	Options
	writer      client.Client
	live        client.Reader
	authorities *authority.Keeper
}

// Setup adds the controller to mgr.
func Setup(mgr ctrl.Manager, o Options) error {
	o.Interval = cmp.Or(o.Interval, lookInterval)
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	r := &reconciler{Options: o, writer: mgr.GetClient(), live: mgr.GetAPIReader()}
	r.authorities = authority.NewKeeper(authority.LiveStore{Reader: r.live, Writer: r.writer},
		types.NamespacedName{Namespace: o.Namespace, Name: AuthoritySecret}, o.Clock)
	// Nothing tells when the Secret is due. The first look is at the start, and each one says when the next is.
	start := source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[ctrl.Request]) error {
		queue.Add(ctrl.Request{NamespacedName: r.key()})
		return nil
	})
	return ctrl.NewControllerManagedBy(mgr).Named("storecertificate" + o.ControllerSuffix).WatchesRawSource(start).
		WithOptions(reconcile.Options(1)).Complete(r)
}

func (r *reconciler) key() types.NamespacedName {
	return types.NamespacedName{Namespace: r.Namespace, Name: Secret}
}

// Reconcile writes the stores' certificate if it is due.
func (r *reconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	next, err := r.keepCertificate(ctx)
	if apierrors.IsAlreadyExists(err) {
		return reconcile.RetrySoon(), nil // the next look shows whose it is
	}
	return reconcile.RetryConflict(ctrl.Result{RequeueAfter: next}, err)
}

// keepCertificate returns when to look again.
func (r *reconciler) keepCertificate(ctx context.Context) (time.Duration, error) {
	secret, err := reconcile.Find(ctx, r.live, r.key(), &corev1.Secret{})
	if err != nil {
		return 0, err
	}
	if secret != nil && secret.Labels[labelManager] != manager {
		return 0, errclass.Errorf(errclass.Conflict, "Secret %s was made by somebody else, and the stores need it: delete it",
			r.key())
	}
	issuer, err := r.authorities.Issuer(ctx)
	if err != nil {
		return 0, fmt.Errorf("get the authorities of the stores: %w", err)
	}
	hosts := []string{names.StoreHost, names.MetadataHost(r.Namespace)}
	if secret != nil {
		if left := issuer.TimeLeft(secret.Data, hosts); left > 0 {
			return min(left, r.Interval), r.announceMetadata(ctx, secret.Data[authority.AuthoritiesKey])
		}
	}
	certificate, err := issuer.IssuePeer(hosts)
	if err != nil {
		return 0, err
	}
	data := issuer.SecretData(certificate)
	// Clients must know the authorities before stores show a certificate that these have signed.
	if err := r.announceMetadata(ctx, data[authority.AuthoritiesKey]); err != nil {
		return 0, err
	}
	return r.Interval, r.writeSecret(ctx, secret, data)
}

// writeSecret creates the Secret, or replaces what secret has.
func (r *reconciler) writeSecret(ctx context.Context, secret *corev1.Secret, data map[string][]byte) error {
	if secret == nil {
		secret = &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: r.Namespace, Name: Secret, Labels: map[string]string{labelManager: manager},
			},
			Type: corev1.SecretTypeTLS, Data: data,
		}
		if err := r.writer.Create(ctx, secret); err != nil {
			return fmt.Errorf("create Secret %s: %w", r.key(), err)
		}
		return nil
	}
	secret.Data = data
	if err := r.writer.Update(ctx, secret); err != nil {
		return fmt.Errorf("update Secret %s: %w", r.key(), err)
	}
	return nil
}
