// Package s3 describes the S3 service beside a box: versitygw, which serves a directory on the bridge's address with TLS,
// for pods, nodes and the host alike.
//
// Open makes what the service needs below the box's directory, and keeps what is there: certificates, keys and data survive the
// service's process, the box's nodes and a reset of the machine. Nothing here is safe for use by two processes at once: the
// caller holds the box's lock.
package s3

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"time"

	"github.com/varvebackup/varve/box/internal/atomicfile"
	"github.com/varvebackup/varve/box/internal/layout"
	"github.com/varvebackup/varve/box/internal/pki"
)

const (
	// Bucket is the bucket without object lock.
	Bucket = "varve"
	// LockedBucket is the bucket with object lock, and so with versions.
	LockedBucket = "varve-locked"

	region     = "us-east-1"
	port       = 7070
	healthPath = "/-/health" // no bucket can have this name
)

// Description tells clients everything about a service. It is the content of the file layout.Box.S3Description.
type Description struct {
	Endpoint     string `json:"endpoint"` // a URL
	Region       string `json:"region"`
	Bucket       string `json:"bucket"`
	LockedBucket string `json:"lockedBucket"`
	// CAFile verifies the server, in PEM.
	CAFile string `json:"caFile"`
	// CredentialsFile has the keys of an account that may do everything, in the format of AWS's credentials file.
	CredentialsFile string `json:"credentialsFile"`
}

// Service is a service that may or may not be running.
type Service struct {
	Description

	dir                  string
	address              netip.AddrPort
	accessKey, secretKey string
	authority, leaf      pki.Pair
}

// Open loads the service of a box whose bridge has the address, or makes it. It starts nothing.
func Open(box layout.Box, bridge netip.Addr, now time.Time) (*Service, error) {
	s := &Service{dir: box.S3(), address: netip.AddrPortFrom(bridge, port)}
	for _, dir := range []string{s.dir, s.data(), s.versions(), s.accounts()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("prepare the S3 service: %w", err)
		}
	}
	authority, err := pki.Open(filepath.Join(s.dir, "pki"), "ca", now)
	if err != nil {
		return nil, err
	}
	s.authority = authority.Pair
	if s.leaf, err = authority.Ensure("server", pki.Leaf{CommonName: "s3", IPs: []net.IP{bridge.AsSlice()}}); err != nil {
		return nil, err
	}
	if err := s.ensureCredentials(); err != nil {
		return nil, err
	}
	s.Description = Description{
		Endpoint: "https://" + s.address.String(), Region: region, Bucket: Bucket, LockedBucket: LockedBucket,
		CAFile: s.authority.CertFile, CredentialsFile: s.credentials(),
	}
	return s, nil
}

func (s *Service) data() string        { return filepath.Join(s.dir, "data") }
func (s *Service) versions() string    { return filepath.Join(s.dir, "versions") }
func (s *Service) accounts() string    { return filepath.Join(s.dir, "accounts") }
func (s *Service) credentials() string { return filepath.Join(s.dir, "credentials") }

// keys matches a file of credentials that ensureCredentials wrote.
var keys = regexp.MustCompile(`^\[default\]\naws_access_key_id=([A-Z2-7]{26})\naws_secret_access_key=([A-Z2-7]{26})\n$`)

// ensureCredentials loads the keys, or makes new ones. They are those of versitygw's root account, which may do everything, whoever owns a bucket.
func (s *Service) ensureCredentials() error {
	data, err := os.ReadFile(s.credentials())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("read the keys of the S3 service: %w", err)
	}
	if found := keys.FindSubmatch(data); found != nil {
		s.accessKey, s.secretKey = string(found[1]), string(found[2])
		return os.Chmod(s.credentials(), 0o600)
	}
	s.accessKey, s.secretKey = rand.Text(), rand.Text()
	return atomicfile.Write(s.credentials(), fmt.Appendf(nil, "[default]\naws_access_key_id=%s\naws_secret_access_key=%s\n", s.accessKey, s.secretKey), 0o600)
}

// Arguments are versitygw's. Without a directory for accounts, it answers a wrong key with 404, unlike S3. Without --keep-alive it closes each
// connection after one request, unlike S3: a TLS handshake each, which took nearly half of its processor time. Request logs would grow for ever.
func (s *Service) Arguments() []string {
	return []string{
		"--port", s.address.String(), "--health", healthPath, "--iam-dir", s.accounts(), "--quiet", "--keep-alive",
		"--cert", s.leaf.CertFile, "--key", s.leaf.KeyFile,
		"posix", "--versioning-dir", s.versions(), s.data(),
	}
}

// Environment is versitygw's.
func (s *Service) Environment() []string {
	return []string{"ROOT_ACCESS_KEY=" + s.accessKey, "ROOT_SECRET_KEY=" + s.secretKey}
}

// Secrets is the content of the files that versitygw reads when it starts, and not again.
func (s *Service) Secrets() ([]byte, error) {
	certificate, err := s.leaf.CertPEM()
	return append(certificate, s.accessKey+s.secretKey...), err
}

// Healthy returns nil if the service answers, with the certificate that it should have.
func (s *Service) Healthy(ctx context.Context) error {
	authority, err := s.authority.CertPEM()
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authority)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.Endpoint+healthPath, http.NoBody)
	if err != nil {
		return err
	}
	response, err := transport.RoundTrip(r)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		err = errors.New(response.Status)
	}
	return errors.Join(err, response.Body.Close())
}

// EnsureBuckets makes the buckets that are missing. The service must run; program is versitygw, whose own client makes them.
func (s *Service) EnsureBuckets(ctx context.Context, program string) error {
	for bucket, more := range map[string][]string{Bucket: nil, LockedBucket: {"--object-lock-enabled-for-bucket"}} {
		if _, err := os.Stat(filepath.Join(s.data(), bucket)); err == nil { // a bucket is a directory
			continue
		}
		arguments := append([]string{"admin", "--endpoint-url", s.Endpoint, "--region", region, "create-bucket", "--owner", s.accessKey, "--bucket", bucket}, more...)
		cmd := exec.CommandContext(ctx, program, arguments...)
		// Keys on the command line would be visible to everybody on the machine.
		cmd.Env = []string{"ADMIN_ACCESS_KEY_ID=" + s.accessKey, "ADMIN_SECRET_ACCESS_KEY=" + s.secretKey, "SSL_CERT_FILE=" + s.CAFile}
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("make the bucket %s: %w: %s", bucket, err, out)
		}
	}
	return nil
}
