package admission

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
)

// slowReader notes how many reads there are at a time.
type slowReader struct {
	client.Reader
	running, most atomic.Int32
}

func (s *slowReader) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return s.read()
}

func (s *slowReader) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return s.read()
}

func (s *slowReader) read() error {
	n := s.running.Add(1)
	for most := s.most.Load(); n > most && !s.most.CompareAndSwap(most, n); most = s.most.Load() {
	}
	time.Sleep(5 * time.Millisecond)
	s.running.Add(-1)
	return nil
}

func TestLimitedReader_boundsWhatAllRequestsRead(t *testing.T) {
	t.Parallel()
	slow := &slowReader{}
	r := newLimitedReader(slow)
	errs := make(chan error, 10*maxReads)
	for range cap(errs) / 2 {
		go func() { errs <- r.Get(t.Context(), client.ObjectKey{}, &corev1.PersistentVolumeClaim{}) }()
		go func() { errs <- r.List(t.Context(), &harvesterv1.ScheduleVMBackupList{}) }()
	}
	for range cap(errs) {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if most := slow.most.Load(); most != maxReads {
		t.Errorf("%d reads at a time, want %d", most, maxReads)
	}
	for range maxReads {
		r.places <- struct{}{}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Get(ctx, client.ObjectKey{}, &corev1.PersistentVolumeClaim{}); !errors.Is(err, context.Canceled) {
		t.Errorf("a request that ended: %v", err)
	}
	if err := r.List(ctx, &harvesterv1.ScheduleVMBackupList{}); !errors.Is(err, context.Canceled) {
		t.Errorf("a request that ended: %v", err)
	}
}

// authority makes an authority, and a client certificate of it.
func authority(t *testing.T) (*x509.CertPool, tls.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca := certificateTemplate(time.Now(), "an authority")
	ca.IsCA, ca.BasicConstraintsValid, ca.KeyUsage = true, true, x509.KeyUsageCertSign
	leaf := certificateTemplate(time.Now(), "kube-apiserver")
	leaf.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	authorityDER, err := x509.CreateCertificate(rand.Reader, ca, ca, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leafDER, err := x509.CreateCertificate(rand.Reader, leaf, ca, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(authorityDER)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	return pool, tls.Certificate{Certificate: [][]byte{leafDER}, PrivateKey: key}
}

// With the authority of the API server's certificate, the webhook answers the API server alone.
func TestWebhook_answersClientsOfTheAuthorityAlone(t *testing.T) {
	t.Parallel()
	issued, err := issueBundle(time.Now(), hosts)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := issued.usableCertificate(time.Now(), hosts)
	if err != nil {
		t.Fatal(err)
	}
	k := &keeper{}
	k.serving.Store(pair)
	pool, known := authority(t)
	_, stranger := authority(t)
	for name, c := range map[string]struct {
		options     Options
		certificate []tls.Certificate
		answered    bool
	}{
		"the API server":              {Options{ClientCAs: pool}, []tls.Certificate{known}, true},
		"another certificate":         {Options{ClientCAs: pool}, []tls.Certificate{stranger}, false},
		"no certificate":              {Options{ClientCAs: pool}, nil, false},
		"no certificate is asked for": {Options{}, nil, true},
	} {
		config := &tls.Config{}
		c.options.configureTLS(config, k)
		here, there := net.Pipe()
		served := make(chan error, 1)
		go func() {
			server := tls.Server(there, config)
			served <- errors.Join(server.HandshakeContext(t.Context()), there.Close())
		}()
		dialed := tls.Client(here, &tls.Config{Certificates: c.certificate, InsecureSkipVerify: true})
		_ = dialed.HandshakeContext(t.Context())
		_, _ = dialed.Read(make([]byte, 1)) // in TLS 1.3 a client learns of a refusal when it reads
		if err := <-served; (err == nil) != c.answered {
			t.Errorf("%s: %v", name, err)
		}
		_ = here.Close()
	}
}
