package server_test

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/export/exporttest"
	"github.com/varvebackup/varve/internal/export/server"
	"github.com/varvebackup/varve/test/authority"
)

func TestServe_takesTheCertificateOfTheMoment(t *testing.T) {
	t.Parallel()
	var current atomic.Pointer[tls.Certificate]
	first, second := authority.New(t).Server.Certificates[0], authority.New(t).Server.Certificates[0]
	current.Store(&first)
	s := openVolumes(t, server.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return current.Load(), nil }}, exporttest.NewVolume("root", 4096, false, 1))
	for _, want := range []*tls.Certificate{&first, &second} {
		current.Store(want)
		conn, err := tls.Dial("tcp", s.address, &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		if !conn.ConnectionState().PeerCertificates[0].Equal(want.Leaf) {
			t.Error("another certificate")
		}
		conn.Close()
	}
}

func TestServe_refusesOldTLSAndNone(t *testing.T) {
	t.Parallel()
	s := openVolumes(t, server.Config{}, exporttest.NewVolume("root", 4096, false, 1))
	for version, want := range map[uint16]bool{tls.VersionTLS11: false, tls.VersionTLS12: true, tls.VersionTLS13: true} {
		conn, err := tls.Dial("tcp", s.address, &tls.Config{RootCAs: s.roots, ServerName: "localhost", MinVersion: tls.VersionTLS10, MaxVersion: version})
		if (err == nil) != want {
			t.Errorf("%s: %v", tls.VersionName(version), err)
		}
		if err == nil {
			conn.Close()
		}
	}
	conn := s.dialPlain(t)
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := conn.Write([]byte(goodRequest)); err != nil {
		t.Fatal(err)
	}
	if text, _ := io.ReadAll(conn); strings.Contains(string(text), "200") {
		t.Errorf("an answer without TLS: %q", text)
	}
}

// A server that ends cuts what takes too long: nobody takes what came until then for the whole.
func TestServe_endsWithItsContext(t *testing.T) {
	t.Parallel()
	certificate := authority.New(t).Server.Certificates[0]
	disk := exporttest.NewVolume("root", 32<<20, false, 1)
	srv, err := server.New(server.Config{
		Token: knownToken, Names: []string{"root"}, Volumes: exporttest.Volumes{"root": disk},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &certificate, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ctx, l) }()
	conn, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(goodRequest)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if n, err := io.Copy(io.Discard, conn); err == nil || n >= 32<<20 {
		t.Errorf("%d bytes, and the connection ended well: %v", n, err)
	}
}
