package exportproxy

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export/authority"
	"github.com/varvebackup/varve/internal/export/proxy"
	"github.com/varvebackup/varve/internal/reconcile"
)

// Address is where clients outside the cluster reach exports.
type Address struct {
	// Host is a DNS name or an IP address, with a port if it is not 443. Empty: there is no address.
	Host string
	// Authorities are the certificates that verify the one that clients meet there, in PEM.
	Authorities string
}

// Finder finds the address.
type Finder struct {
	// Reader reads from the API server, not from a cache.
	Reader client.Reader
	// Namespace is Varve's own.
	Namespace string
	// Host is the address's host, as CheckHost takes it. Empty: that of the Ingress.
	Host string
}

// CheckHost refuses a host that is neither a DNS name nor an IP address, each with a port or without.
func CheckHost(host string) error {
	name := hostname(host)
	if _, port, err := net.SplitHostPort(host); err == nil {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return errclass.Errorf(errclass.Invalid, "host %q: %q is no port", host, port)
		}
	}
	if _, err := netip.ParseAddr(name); err == nil {
		if strings.Contains(name, ":") && !strings.HasPrefix(host, "[") {
			return errclass.Errorf(errclass.Invalid, "host %q: write an IPv6 address in brackets", host)
		}
		return nil
	}
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return errclass.Errorf(errclass.Invalid, "host %q is no DNS name and no IP address: %s", host, strings.Join(problems, "; "))
	}
	return nil
}

// hostname returns a host without its port and without brackets.
func hostname(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		return name
	}
	return strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
}

// Find returns the address. Its zero value: there is none, or it is not known yet what clients must trust there.
// authorities are those of exports.
func (f Finder) Find(ctx context.Context, authorities string) (Address, error) {
	host, ended, err := f.host(ctx)
	if err != nil || host == "" {
		return Address{}, err
	}
	if ended != "" {
		secret, err := f.secret(ctx, ended)
		if err != nil || secret == nil {
			return Address{}, err
		}
		return Address{Host: host, Authorities: certificatesOf(secret)}, nil
	}
	secret, err := f.secret(ctx, proxy.CertificateSecret)
	switch {
	case err != nil:
		return Address{}, err
	case secret == nil || isOurs(secret):
		return Address{Host: host, Authorities: authorities}, nil
	}
	return Address{Host: host, Authorities: certificatesOf(secret)}, nil
}

// host returns the address's host, and the Secret with which an Ingress ends TLS for it. Either may be empty.
func (f Finder) host(ctx context.Context) (host, tlsSecret string, err error) {
	ingress, err := reconcile.Find(ctx, f.Reader, types.NamespacedName{Namespace: f.Namespace, Name: proxy.Name}, &networkingv1.Ingress{})
	if err != nil {
		return "", "", err
	}
	if ingress == nil {
		return f.Host, "", nil
	}
	host = f.Host
	if host == "" {
		host = hostOfIngress(ingress)
	}
	return host, tlsSecretFor(ingress, hostname(host)), nil
}

// hostOfIngress returns the first host that leads to the proxy's Service. A host with a wildcard is no address.
func hostOfIngress(ingress *networkingv1.Ingress) string {
	leads := func(b *networkingv1.IngressBackend) bool {
		return b != nil && b.Service != nil && b.Service.Name == proxy.Name
	}
	for _, rule := range ingress.Spec.Rules {
		if CheckHost(rule.Host) != nil {
			continue
		}
		if rule.HTTP == nil && leads(ingress.Spec.DefaultBackend) {
			return rule.Host
		}
		if rule.HTTP != nil && slices.ContainsFunc(rule.HTTP.Paths, func(p networkingv1.HTTPIngressPath) bool { return leads(&p.Backend) }) {
			return rule.Host
		}
	}
	return ""
}

// tlsSecretFor returns the Secret with which an Ingress ends TLS for a host.
func tlsSecretFor(ingress *networkingv1.Ingress, host string) string {
	_, domain, _ := strings.Cut(host, ".")
	for _, entry := range ingress.Spec.TLS {
		if len(entry.Hosts) == 0 || slices.Contains(entry.Hosts, host) || slices.Contains(entry.Hosts, "*."+domain) {
			return entry.SecretName
		}
	}
	return ""
}

// secret reads a Secret of Varve's namespace. It returns nil if there is none.
func (f Finder) secret(ctx context.Context, name string) (*corev1.Secret, error) {
	return reconcile.Find(ctx, f.Reader, types.NamespacedName{Namespace: f.Namespace, Name: name}, &corev1.Secret{})
}

// certificatesOf returns the certificates of a Secret of type kubernetes.io/tls, in PEM, each once: the authorities, if
// it has them, and the certificate with its chain, which a client may trust as well. Nothing else of it is returned.
func certificatesOf(secret *corev1.Secret) string {
	var all bytes.Buffer
	var seen [][]byte
	for _, text := range [][]byte{secret.Data[authority.AuthoritiesKey], secret.Data[corev1.TLSCertKey]} {
		for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
			if _, err := x509.ParseCertificate(block.Bytes); err != nil || block.Type != "CERTIFICATE" || slices.ContainsFunc(seen, func(b []byte) bool { return bytes.Equal(b, block.Bytes) }) {
				continue
			}
			seen = append(seen, block.Bytes)
			all.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: block.Bytes}))
		}
	}
	return all.String()
}
