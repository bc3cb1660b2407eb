//go:build controlplane

package certificate

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/varvebackup/varve/internal/csichanges"
	"github.com/varvebackup/varve/internal/export/authority"
	"github.com/varvebackup/varve/internal/store/names"
	"github.com/varvebackup/varve/test/controlplane"
)

var cluster *controlplane.Cluster

func TestMain(m *testing.M) { controlplane.Main(m, &cluster) }

// world is Varve's namespace with a controller that has the rights that it has in a cluster.
type world struct {
	*testing.T
	admin client.Client
	clock *testclock.FakePassiveClock
	// interval is the controller's; 0: so long that a look without a restart would be too late.
	interval time.Duration
	stop     func()
}

func (w *world) restart() {
	w.Helper()
	if w.stop != nil {
		w.stop()
	}
	mgr := cluster.Manager(w.T, controlplane.Controller.Restrict())
	o := Options{Namespace: controlplane.SystemNamespace, Clock: w.clock, Interval: cmp.Or(w.interval, time.Hour)}
	if err := Setup(mgr, o); err != nil {
		w.Fatal(err)
	}
	w.stop = controlplane.StartManager(w.T, mgr)
}

func newSecret() *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: controlplane.SystemNamespace, Name: Secret}}
}

// verified waits for a certificate for servers and for clients that is none of known.
func (w *world) verified(known ...[]byte) []byte {
	w.Helper()
	var leaf []byte
	controlplane.Eventually(w.T, func() error {
		s := newSecret()
		if err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(s), s); err != nil {
			return err
		}
		pair, err := tls.X509KeyPair(s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey])
		if err != nil {
			return err
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(s.Data[authority.AuthoritiesKey])
		for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
			if _, err := pair.Leaf.Verify(x509.VerifyOptions{
				DNSName: names.StoreHost, Roots: roots, CurrentTime: w.clock.Now(), KeyUsages: []x509.ExtKeyUsage{usage},
			}); err != nil {
				return fmt.Errorf("usage %d: %w", usage, err)
			}
		}
		if err := pair.Leaf.VerifyHostname("varve-store-metadata.varve.svc"); err != nil {
			return err
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

func TestCertificate(t *testing.T) {
	t.Parallel()
	if err := cluster.InstallRoles(t.Context()); err != nil {
		t.Fatal(err)
	}
	w := &world{
		T: t, admin: cluster.Client(t, controlplane.Admin), clock: testclock.NewFakePassiveClock(time.Now()),
	}
	w.restart()
	first := w.verified()
	w.clock.SetTime(w.clock.Now().Add(17 * time.Hour)) // hours before its end
	w.restart()
	second := w.verified(first)
	controlplane.Update(t, w.admin, newSecret(), false, func(s *corev1.Secret) {
		s.Data[corev1.TLSPrivateKeyKey] = []byte("damaged")
	})
	w.restart()
	third := w.verified(first, second)
	controlplane.Update(t, w.admin, newSecret(), false, func(s *corev1.Secret) { s.Data[authority.AuthoritiesKey] = nil })
	w.restart()
	fourth := w.verified(first, second, third)
	if err := w.admin.Delete(t.Context(), newSecret()); err != nil {
		t.Fatal(err)
	}
	w.restart()
	w.verified(first, second, third, fourth)
	// Nothing is due.
	before := newSecret()
	if err := w.admin.Get(t.Context(), client.ObjectKeyFromObject(before), before); err != nil {
		t.Fatal(err)
	}
	w.restart()
	controlplane.Consistently(t, 300*time.Millisecond, func() error {
		now := newSecret()
		if err := w.admin.Get(t.Context(), client.ObjectKeyFromObject(now), now); err != nil {
			return err
		}
		if now.ResourceVersion != before.ResourceVersion {
			return fmt.Errorf("it was written for nothing")
		}
		return nil
	})
	announced(w)
	somebodyElses(w)
}

// announced checks that the stores' SnapshotMetadata service is announced when somebody installs the kind beside a
// controller that runs, with the authorities of its certificate, and again after somebody changed the announcement, or
// removed it.
func announced(w *world) {
	w.Helper()
	w.interval = 100 * time.Millisecond
	defer func() { w.interval = 0 }()
	w.restart()
	// It has seen that there is no such kind when it has replaced the Secret, after which it looks again.
	known := w.verified()
	if err := w.admin.Delete(w.Context(), newSecret()); err != nil {
		w.Fatal(err)
	}
	w.verified(known)
	if err := cluster.InstallSnapshotKinds(w.Context()); err != nil {
		w.Fatal(err)
	}
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(csichanges.ServiceKind)
	o.SetName(names.Driver)
	wanted := func() error {
		s := newSecret()
		if err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(s), s); err != nil {
			return err
		}
		found, err := csichanges.FindService(w.Context(), w.admin, names.Driver)
		if err != nil {
			return err
		}
		want := &csichanges.Service{
			Address: "varve-store-metadata.varve.svc:8503", Audience: names.Driver, CA: s.Data[authority.AuthoritiesKey],
		}
		if diff := gocmp.Diff(want, found); diff != "" {
			return fmt.Errorf("(-want +got):\n%s", diff)
		}
		return nil
	}
	controlplane.Eventually(w.T, wanted)
	controlplane.Update(w.T, w.admin, o, false, func(o *unstructured.Unstructured) {
		o.Object["spec"] = map[string]any{"address": "evil:1", "audience": "a", "caCert": "UEVN"}
	})
	controlplane.Eventually(w.T, wanted)
	if err := w.admin.Delete(w.Context(), o); err != nil {
		w.Fatal(err)
	}
	controlplane.Eventually(w.T, wanted)
}

// somebodyElses leaves a Secret alone that this controller has not made.
func somebodyElses(w *world) {
	w.stop()
	if err := w.admin.Delete(w.Context(), newSecret()); err != nil {
		w.Fatal(err)
	}
	theirs := newSecret()
	theirs.Data = map[string][]byte{"mine": []byte("yes")}
	if err := w.admin.Create(w.Context(), theirs); err != nil {
		w.Fatal(err)
	}
	w.restart()
	controlplane.Consistently(w.T, 300*time.Millisecond, func() error {
		if err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(theirs), theirs); err != nil {
			return err
		}
		if len(theirs.Data) != 1 {
			return fmt.Errorf("it was changed: %v", theirs.Labels)
		}
		return nil
	})
}
