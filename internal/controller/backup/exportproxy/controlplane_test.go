//go:build controlplane

package exportproxy

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/varvebackup/varve/internal/export/proxy"
	"github.com/varvebackup/varve/test/controlplane"
)

var cluster *controlplane.Cluster

func TestMain(m *testing.M) { controlplane.Main(m, &cluster) }

// TestControlPlane runs every test that needs the API server, after it has set up what they share.
func TestControlPlane(t *testing.T) {
	t.Parallel()
	if err := cluster.InstallRoles(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]func(*world){
		"the certificate":            certificate,
		"somebody else's Secret":     foreignSecret,
		"the address of an Ingress":  ingressAddress,
		"no address, no certificate": noAddress,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &world{T: t, ns: cluster.Namespace(t), admin: cluster.Client(t, controlplane.Admin), clock: testclock.NewFakePassiveClock(time.Now())}
			test(w)
		})
	}
}

// world is one test's namespace, as Varve's own, with the rights that deploy/rbac gives the controller.
type world struct {
	*testing.T
	ns    string
	admin client.Client
	clock *testclock.FakePassiveClock
	stop  func()
}

func (w *world) start(host string) {
	w.Helper()
	mgr := cluster.Manager(w.T, controlplane.Controller.Restrict())
	if err := Setup(mgr, Options{Namespace: w.ns, Host: host, AuthoritySecret: "varve-export-ca", Clock: w.clock}); err != nil {
		w.Fatal(err)
	}
	w.stop = controlplane.StartManager(w.T, mgr)
}

func (w *world) create(o client.Object) {
	w.Helper()
	if err := w.admin.Create(w.Context(), o); err != nil {
		w.Fatal(err)
	}
}

// found returns what exports would have as their external address.
func (w *world) found(host string) Address {
	w.Helper()
	a, err := Finder{Reader: cluster.Client(w.T, controlplane.Controller.Restrict()), Namespace: w.ns, Host: host}.Find(w.Context(), "authorities of exports")
	if err != nil {
		w.Fatal(err)
	}
	return a
}

// verified waits for a certificate that the authorities of exports verify for these hosts, and that is none of known.
func (w *world) verified(hosts []string, known ...[]byte) []byte {
	w.Helper()
	var leaf []byte
	controlplane.Eventually(w.T, func() error {
		s, authorities := &corev1.Secret{}, &corev1.Secret{}
		if err := w.admin.Get(w.Context(), client.ObjectKey{Namespace: w.ns, Name: proxy.CertificateSecret}, s); err != nil {
			return err
		}
		if err := w.admin.Get(w.Context(), client.ObjectKey{Namespace: w.ns, Name: "varve-export-ca"}, authorities); err != nil {
			return err
		}
		pair, err := tls.X509KeyPair(s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey])
		if err != nil {
			return err
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(authorities.Data["ca.crt"])
		for _, host := range hosts {
			if _, err := pair.Leaf.Verify(x509.VerifyOptions{DNSName: host, Roots: roots, CurrentTime: w.clock.Now()}); err != nil {
				return err
			}
		}
		for _, k := range known {
			if bytes.Equal(k, pair.Leaf.Raw) {
				return fmt.Errorf("the certificate is still that of before")
			}
		}
		leaf = pair.Leaf.Raw
		return nil
	})
	return leaf
}

func certificate(w *world) {
	service := "varve-exportproxy." + w.ns + ".svc"
	w.start("exports.example.org:8443")
	first := w.verified([]string{service, service + ".cluster.local", "exports.example.org"})
	if got := w.found("exports.example.org:8443"); got != (Address{Host: "exports.example.org:8443", Authorities: "authorities of exports"}) {
		w.Errorf("%+v", got)
	}
	// Nothing is due.
	w.stop()
	w.start("exports.example.org:8443")
	time.Sleep(500 * time.Millisecond)
	if again := w.verified([]string{service}); !bytes.Equal(again, first) {
		w.Error("the certificate changed for nothing")
	}
	// It is renewed hours before its end, after damage, and for another address.
	w.stop()
	w.clock.SetTime(w.clock.Now().Add(17 * time.Hour))
	w.start("exports.example.org:8443")
	second := w.verified([]string{"exports.example.org"}, first)
	w.stop()
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: proxy.CertificateSecret}}
	controlplane.Update(w.T, w.admin, s, false, func(s *corev1.Secret) { s.Data[corev1.TLSPrivateKeyKey] = []byte("damaged") })
	w.start("exports.example.org:8443")
	third := w.verified([]string{"exports.example.org"}, first, second)
	w.stop()
	w.start("192.0.2.7:30443")
	w.verified([]string{service, "192.0.2.7"}, third)
}

func foreignSecret(w *world) {
	secret, certificates := tlsSecret(w.T, w.ns, proxy.CertificateSecret)
	w.create(secret)
	w.start("exports.example.org")
	time.Sleep(500 * time.Millisecond)
	now := &corev1.Secret{}
	if err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(secret), now); err != nil || now.ResourceVersion != secret.ResourceVersion {
		w.Errorf("somebody else's Secret was changed: %v", err)
	}
	if got := w.found("exports.example.org"); got != (Address{Host: "exports.example.org", Authorities: certificates}) {
		w.Errorf("%+v", got)
	}
}

func ingressAddress(w *world) {
	i := newIngress(w.ns, networkingv1.IngressSpec{Rules: []networkingv1.IngressRule{rule("exports.example.org", proxy.Name)}})
	w.create(i)
	w.start("")
	w.verified([]string{"exports.example.org"})
	if got := w.found(""); got != (Address{Host: "exports.example.org", Authorities: "authorities of exports"}) {
		w.Errorf("the proxy ends TLS: %+v", got)
	}
	if got := w.found("mine.example.org"); got.Host != "mine.example.org" {
		w.Errorf("what the controller was told: %+v", got)
	}
	// The Ingress ends TLS. Without its Secret nobody knows what to trust.
	controlplane.Update(w.T, w.admin, i, false, func(i *networkingv1.Ingress) {
		i.Spec.TLS = []networkingv1.IngressTLS{{Hosts: []string{"exports.example.org"}, SecretName: "ingress-cert"}}
	})
	if got := w.found(""); got != (Address{}) {
		w.Errorf("%+v", got)
	}
	secret, certificates := tlsSecret(w.T, w.ns, "ingress-cert")
	w.create(secret)
	if got := w.found(""); got != (Address{Host: "exports.example.org", Authorities: certificates}) {
		w.Errorf("%+v", got)
	}
}

// An Ingress of another name says nothing, and the proxy has a certificate for its Service before it has an address.
func noAddress(w *world) {
	i := newIngress(w.ns, networkingv1.IngressSpec{Rules: []networkingv1.IngressRule{rule("exports.example.org", proxy.Name)}})
	i.Name = "another"
	w.create(i)
	w.start("")
	w.verified([]string{"varve-exportproxy." + w.ns + ".svc"})
	if got := w.found(""); got != (Address{}) {
		w.Errorf("%+v", got)
	}
}
