package exportproxy

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	exportauthority "github.com/varvebackup/varve/internal/export/authority"
	"github.com/varvebackup/varve/internal/export/proxy"
	"github.com/varvebackup/varve/test/authority"
)

func TestCheckHost(t *testing.T) {
	t.Parallel()
	for host, ok := range map[string]bool{
		"exports.example.org": true, "exports.example.org:8443": true, "10.0.0.1": true, "10.0.0.1:30443": true, "[fd00::1]:443": true, "[fd00::1]": true,
		"": false, "fd00::1": false, "https://exports.example.org": false, "exports.example.org/path": false, "*.example.org": false, "a b": false, "a@b": false,
	} {
		if err := CheckHost(host); (err == nil) != ok {
			t.Errorf("%q: %v", host, err)
		}
	}
}

func backend(service string) *networkingv1.IngressBackend {
	return &networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{Name: service, Port: networkingv1.ServiceBackendPort{Number: 443}}}
}

// rule leads a host to a Service. Empty: to the default backend.
func rule(host, service string) networkingv1.IngressRule {
	r := networkingv1.IngressRule{Host: host}
	if service != "" {
		r.HTTP = &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{{Path: "/", PathType: ptr.To(networkingv1.PathTypePrefix), Backend: *backend(service)}}}
	}
	return r
}

func newIngress(namespace string, spec networkingv1.IngressSpec) *networkingv1.Ingress {
	return &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: proxy.Name}, Spec: spec}
}

func TestIngress_namesTheHostAndTheSecret(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spec         networkingv1.IngressSpec
		host, secret string
	}{
		"a rule":               {networkingv1.IngressSpec{Rules: []networkingv1.IngressRule{rule("other.org", "web"), rule("exports.org", proxy.Name)}}, "exports.org", ""},
		"the default backend":  {networkingv1.IngressSpec{DefaultBackend: backend(proxy.Name), Rules: []networkingv1.IngressRule{rule("exports.org", "")}}, "exports.org", ""},
		"another one":          {networkingv1.IngressSpec{DefaultBackend: backend("web"), Rules: []networkingv1.IngressRule{rule("exports.org", "")}}, "", ""},
		"no host":              {networkingv1.IngressSpec{Rules: []networkingv1.IngressRule{rule("", proxy.Name)}}, "", ""},
		"a wildcard":           {networkingv1.IngressSpec{Rules: []networkingv1.IngressRule{rule("*.org", proxy.Name)}}, "", ""},
		"no rules":             {networkingv1.IngressSpec{DefaultBackend: backend(proxy.Name)}, "", ""},
		"a secret":             {networkingv1.IngressSpec{Rules: []networkingv1.IngressRule{rule("exports.org", proxy.Name)}, TLS: []networkingv1.IngressTLS{{Hosts: []string{"other.org"}, SecretName: "a"}, {Hosts: []string{"exports.org"}, SecretName: "b"}}}, "exports.org", "b"},
		"a wildcard's secret":  {networkingv1.IngressSpec{Rules: []networkingv1.IngressRule{rule("x.exports.org", proxy.Name)}, TLS: []networkingv1.IngressTLS{{Hosts: []string{"*.exports.org"}, SecretName: "b"}}}, "x.exports.org", "b"},
		"another one's secret": {networkingv1.IngressSpec{Rules: []networkingv1.IngressRule{rule("exports.org", proxy.Name)}, TLS: []networkingv1.IngressTLS{{Hosts: []string{"other.org"}, SecretName: "a"}}}, "exports.org", ""},
	} {
		i := newIngress("varve", c.spec)
		host := hostOfIngress(i)
		if secret := tlsSecretFor(i, host); host != c.host || secret != c.secret {
			t.Errorf("%s: %q %q", name, host, secret)
		}
	}
}

// tlsSecret returns a Secret of somebody else with a certificate, and the certificate in PEM.
func tlsSecret(t *testing.T, namespace, name string) (*corev1.Secret, string) {
	t.Helper()
	dir := authority.New(t).Files(t)
	read := func(file string) []byte {
		text, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	leaf := read("server-cert.pem")
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{
			corev1.TLSCertKey: leaf, corev1.TLSPrivateKeyKey: read("server-key.pem"),
			exportauthority.AuthoritiesKey: read("ca-cert.pem"),
		},
	}, string(read("ca-cert.pem")) + string(leaf)
}

// What is published never has a key in it, wherever somebody has put it.
func TestCertificates_neverHaveAKey(t *testing.T) {
	t.Parallel()
	secret, want := tlsSecret(t, "ns", "s")
	if got := certificatesOf(secret); got != want {
		t.Errorf("%s", got)
	}
	secret.Data[corev1.TLSCertKey] = slices.Concat(secret.Data[corev1.TLSPrivateKeyKey], secret.Data[corev1.TLSCertKey],
		secret.Data[exportauthority.AuthoritiesKey])
	if got := certificatesOf(secret); got != want || strings.Contains(got, "KEY") {
		t.Errorf("%s", got)
	}
	if got := certificatesOf(&corev1.Secret{Data: map[string][]byte{corev1.TLSCertKey: []byte("rubbish")}}); got != "" {
		t.Errorf("%q", got)
	}
}
