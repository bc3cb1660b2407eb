package peer

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/names"
)

// credentials are the certificate of a store, and the authority of all stores.
type credentials struct {
	certificate tls.Certificate
	authority   *x509.CertPool
}

// readCredentials reads tls.crt, tls.key and ca.crt.
func readCredentials(dir string) (credentials, error) {
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
	if err != nil {
		return credentials{}, fmt.Errorf("read the store's certificate: %w", err)
	}
	authority := filepath.Join(dir, "ca.crt")
	pem, err := os.ReadFile(authority)
	if err != nil {
		return credentials{}, fmt.Errorf("read the stores' authority: %w", err)
	}
	c := credentials{certificate: pair, authority: x509.NewCertPool()}
	if !c.authority.AppendCertsFromPEM(pem) {
		return credentials{}, errclass.Errorf(errclass.Invalid, "read the stores' authority: %s has no certificate",
			authority)
	}
	return c, nil
}

// serverTLS reads the files again for each connection, because they are replaced.
func serverTLS(dir string, protocols ...string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: protocols,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			c, err := readCredentials(dir)
			if err != nil {
				return nil, err
			}
			return &tls.Config{
				MinVersion: tls.VersionTLS13, NextProtos: protocols, Certificates: []tls.Certificate{c.certificate},
				ClientCAs: c.authority, ClientAuth: tls.RequireAndVerifyClientCert, VerifyConnection: checkClientName,
			}, nil
		},
	}
}

// PublicTLS is for a server whose clients need no certificate. It reads the files again for each connection.
func PublicTLS(dir string, protocols ...string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: protocols,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			c, err := readCredentials(dir)
			if err != nil {
				return nil, err
			}
			return &c.certificate, nil
		},
	}
}

// checkClientName refuses clients that are not stores, although the same authority has signed their certificates.
func checkClientName(state tls.ConnectionState) error {
	if len(state.PeerCertificates) == 0 {
		return errors.New("the client has no certificate")
	}
	return state.PeerCertificates[0].VerifyHostname(names.StoreHost)
}

func clientTLS(dir string) (*tls.Config, error) {
	c, err := readCredentials(dir)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{c.certificate}, RootCAs: c.authority,
		ServerName: names.StoreHost,
	}, nil
}
