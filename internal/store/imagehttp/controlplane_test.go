//go:build controlplane

package imagehttp

import (
	"errors"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/download"
	"github.com/varvebackup/varve/test/controlplane"
)

var cluster *controlplane.Cluster

func TestMain(m *testing.M) { controlplane.Main(m, &cluster) }

// The store has a real API server review real tokens, with the rights that deploy/ gives it.
func TestControlPlane_takesTokensForDownloadsAlone(t *testing.T) {
	t.Parallel()
	const ns = controlplane.SystemNamespace
	elsewhere := cluster.Namespace(t)
	if err := cluster.InstallRoles(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"account.yaml", "role.yaml"} {
		if err := cluster.Apply(t.Context(), "deploy/store/"+file); err != nil {
			t.Fatal(err)
		}
	}
	admin := cluster.Client(t, controlplane.Admin)
	newToken := func(namespace, name, audience string) string {
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		if namespace != ns {
			if err := admin.Create(t.Context(), account); err != nil {
				t.Fatal(err)
			}
		}
		request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			ExpirationSeconds: ptr.To[int64](600),
		}}
		if audience != "" {
			request.Spec.Audiences = []string{audience}
		}
		if err := admin.SubResource("token").Create(t.Context(), account, request); err != nil {
			t.Fatal(err)
		}
		return request.Status.Token
	}
	store := controlplane.ServiceAccount(ns, "varve-store").Restrict()
	w := newWorld(t, func(o *Options) { o.Kubernetes = kubernetes.NewForConfigOrDie(cluster.ConfigFor(store)) })
	good := newToken(ns, download.ServiceAccount, download.Audience)
	controlplane.Eventually(t, func() error { // The API server learns of bindings from its own watches.
		_, err := w.newClient(good).ReadHashes(t.Context(), golden, 4)
		return err
	})
	for name, token := range map[string]string{
		"for the API server": newToken(ns, download.ServiceAccount, ""),
		"for something else": newToken(ns, download.ServiceAccount, "store.varvebackup.io"),
		"of another account": newToken(ns, "varve-store", download.Audience),
		"of a tenant":        newToken(elsewhere, download.ServiceAccount, download.Audience),
		"of nobody":          "eyJhbGciOiJub25lIn0.e30.",
	} {
		if _, err := w.newClient(token).OpenData(t.Context(), golden, 0); !errors.Is(err, errclass.Denied) {
			t.Errorf("a token %s: %v", name, err)
		}
	}
}
