package exportproxy

import (
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

	"github.com/varvebackup/varve/internal/export/authority"
	"github.com/varvebackup/varve/internal/export/proxy"
	"github.com/varvebackup/varve/internal/reconcile"
)

const (
	// lookEvery is how often the certificate's Secret and the address are looked at.
	lookEvery = 5 * time.Minute
	// labelManager and manager mark the Secret that this package writes.
	labelManager, manager = "app.kubernetes.io/managed-by", "varve-controller"
)

// Options are what Setup needs. Clock has a default.
type Options struct {
	// Namespace is Varve's own.
	Namespace string
	// Host is that of Finder.
	Host string
	// AuthoritySecret is the name of the Secret with the authorities of exports.
	AuthoritySecret string
	// Clock tells the time. Default: the machine's.
	Clock clock.PassiveClock
}

// reconciler keeps one Secret.
type reconciler struct {
	Options
	writer      client.Client
	finder      Finder
	authorities *authority.Keeper
}

// Setup adds the controller to mgr.
func Setup(mgr ctrl.Manager, o Options) error {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	live := authority.LiveStore{Reader: mgr.GetAPIReader(), Writer: mgr.GetClient()}
	r := &reconciler{
		Options: o, writer: mgr.GetClient(), finder: Finder{Reader: mgr.GetAPIReader(), Namespace: o.Namespace, Host: o.Host},
		authorities: authority.NewKeeper(live, types.NamespacedName{Namespace: o.Namespace, Name: o.AuthoritySecret}, o.Clock),
	}
	// Nothing tells when the Secret is due. The first look is at the start, and each one says when the next is.
	start := source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[ctrl.Request]) error {
		queue.Add(ctrl.Request{NamespacedName: types.NamespacedName{Namespace: o.Namespace, Name: proxy.CertificateSecret}})
		return nil
	})
	return ctrl.NewControllerManagedBy(mgr).Named("exportproxy").WatchesRawSource(start).WithOptions(reconcile.Options(1)).Complete(r)
}

// Reconcile writes the proxy's certificate if it is due.
func (r *reconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	next, err := r.keepCertificate(ctx)
	if apierrors.IsAlreadyExists(err) {
		return reconcile.RetrySoon(), nil // the next look shows whose it is
	}
	return reconcile.RetryConflict(ctrl.Result{RequeueAfter: next}, err)
}

// keepCertificate returns when to look again.
func (r *reconciler) keepCertificate(ctx context.Context) (time.Duration, error) {
	secret, err := r.finder.secret(ctx, proxy.CertificateSecret)
	if err != nil {
		return 0, err
	}
	if secret != nil && !isOurs(secret) {
		return lookEvery, nil
	}
	issuer, err := r.authorities.Issuer(ctx)
	if err != nil {
		return 0, fmt.Errorf("get the authorities of exports: %w", err)
	}
	host, _, err := r.finder.host(ctx)
	if err != nil {
		return 0, err
	}
	hosts := certificateHosts(r.Namespace, host)
	if secret != nil {
		if left := issuer.TimeLeft(secret.Data, hosts); left > 0 {
			return min(left, lookEvery), nil
		}
	}
	certificate, err := issuer.Issue(hosts)
	if err != nil {
		return 0, err
	}
	return lookEvery, r.write(ctx, secret, certificateSecret(r.Namespace, issuer.SecretData(certificate)))
}

// certificateHosts returns the names of the certificate: those of the Service, for an Ingress in front of it, and the
// address's.
func certificateHosts(namespace, host string) []string {
	service := proxy.Name + "." + namespace + ".svc"
	hosts := []string{service, service + ".cluster.local"}
	if host != "" {
		hosts = append(hosts, hostname(host))
	}
	return hosts
}

func certificateSecret(namespace string, data map[string][]byte) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: proxy.CertificateSecret, Labels: map[string]string{labelManager: manager}},
		Type:       corev1.SecretTypeTLS,
		Data:       data,
	}
}

// isOurs reports whether this package wrote a Secret.
func isOurs(secret *corev1.Secret) bool { return secret.Labels[labelManager] == manager }

func (r *reconciler) write(ctx context.Context, have, wanted *corev1.Secret) error {
	var err error
	if have == nil {
		err = r.writer.Create(ctx, wanted)
	} else {
		changed := have.DeepCopy()
		changed.Data = wanted.Data
		err = r.writer.Update(ctx, changed)
	}
	if err != nil {
		return fmt.Errorf("write secret %s/%s: %w", wanted.Namespace, wanted.Name, err)
	}
	return nil
}
