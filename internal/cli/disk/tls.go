package disk

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/errclass"
)

// nbdTLSFlags say how to connect to an NBD server over TLS.
type nbdTLSFlags struct{ ca, cert, key string }

func (f *nbdTLSFlags) addFlags(c *cobra.Command) {
	c.Flags().StringVar(&f.ca, "tls-ca", "", "the authority of the server of an nbds:// URI, in PEM (default: those of the system); the server's certificate must have the name in the URI, or the URI's tls-hostname")
	c.Flags().StringVar(&f.cert, "tls-cert", "", "this client's certificate for the server of an nbds:// URI, in PEM")
	c.Flags().StringVar(&f.key, "tls-key", "", "the certificate's key, in PEM")
}

// usesTLS reports whether where is an NBD URI with TLS.
func usesTLS(where string) bool {
	return strings.HasPrefix(where, "nbds://") || strings.HasPrefix(where, "nbds+unix://")
}

// loadTLSConfig returns the configuration for these disks, or nil if none of them needs it.
func (f *nbdTLSFlags) loadTLSConfig(wheres ...string) (*tls.Config, error) {
	needed := false
	for _, where := range wheres {
		needed = needed || usesTLS(where)
	}
	switch {
	case !needed && *f != nbdTLSFlags{}:
		return nil, failure.Usage("--tls-ca, --tls-cert and --tls-key are for disks with an nbds:// URI")
	case !needed:
		return nil, nil //nolint:nilnil // no TLS
	case (f.cert == "") != (f.key == ""):
		return nil, failure.Usage("--tls-cert and --tls-key need each other")
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	var err error
	if f.ca != "" {
		if config.RootCAs, err = readAuthority("--tls-ca", f.ca); err != nil {
			return nil, err
		}
	}
	if f.cert == "" {
		return config, nil
	}
	pair, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		return nil, failure.Usage("--tls-cert %s, --tls-key: %s", f.cert, err)
	}
	config.Certificates = []tls.Certificate{pair}
	return config, nil
}

// readAuthority reads the certificates of an authority. path is the value of flag.
func readAuthority(flag, path string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, failure.Usage("%s: %s", flag, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, failure.Usage("%s %s: the file has no certificate in PEM format", flag, path)
	}
	return pool, nil
}

// diskFailure adds a hint to a certificate error of opening a disk. repoaccess.Explain cannot know whose certificate it
// was.
func diskFailure(err error) error {
	var certificate *tls.CertificateVerificationError
	if errors.As(err, &certificate) {
		return &failure.Error{Err: err, Code: errclass.ExitUnreachable, Hint: "give the certificate of the NBD server's authority with --tls-ca; the name in the URI must be in the server's certificate"}
	}
	return err
}
