// Package s3 gives tests a real S3 server, versitygw, on top of a directory, and a proxy in front of it that imitates
// networks and overloaded servers.
//
//	server := s3.Start(t, s3.Options{ObjectLock: true})
//	client := server.Client(t)
//	…
//	server.Kill(t)    // kill -9
//	server.Restart(t) // the same data at the same address
//
//	faults := s3.StartFaults(t, server, 0, s3.Rule{Method: http.MethodPut, Key: "p", Skip: 2, Times: 1, Fault: s3.DropReply})
//	client = faults.Client(t)
//
// Each server is a separate process on its own loopback port, so that tests can run in parallel. It ends with the
// test, or with the process of the test. If the test fails, the server's log is printed.
//
// The program comes from the directory VARVE_PEERS, or from build/peers/bin, which `make peers` fills.
package s3

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/varvebackup/varve/test/checkout"
	"github.com/varvebackup/varve/test/port"
	"github.com/varvebackup/varve/test/process"
)

// Options configure a server. The zero value is plain HTTP and a bucket without versions.
type Options struct {
	// Bucket is created before Start returns; "" means "varve".
	Bucket string
	// TLS makes the server use TLS, with a certificate from an authority that is created for the test.
	TLS bool
	// Versioning keeps objects that are overwritten or deleted in the bucket.
	Versioning bool
	// ObjectLock allows locking objects in the bucket. It includes Versioning.
	ObjectLock bool
}

// Endpoint is everything that a client needs to know.
type Endpoint struct {
	// Address is host and port.
	Address              string
	AccessKey, SecretKey string
	Region, Bucket       string
	// Authority is the certificate, in PEM, that verifies the server's certificate; nil if the server does not use TLS.
	Authority []byte
}

// Server is an S3 server that is running, except between Kill and Restart. Many goroutines may call its methods.
type Server struct {
	Endpoint

	program     string
	arguments   []string
	log         *os.File
	certificate tls.Certificate

	mu      sync.Mutex
	process *process.Process // nil while it is killed
}

// Start starts a server and creates its bucket.
func Start(tb testing.TB, options Options) *Server {
	tb.Helper()
	s, err := start(tb, options)
	if err != nil {
		tb.Fatalf("start an S3 server: %v", err)
	}
	s.Restart(tb)
	if err := s.makeBucket(tb, options); err != nil {
		tb.Fatalf("make bucket %s: %v", s.Bucket, err)
	}
	return s
}

// start prepares everything except the process. When the test ends, it ends the process.
func start(tb testing.TB, options Options) (*Server, error) {
	tb.Helper()
	program, err := find("versitygw")
	if err != nil {
		return nil, err
	}
	dir := tb.TempDir()
	data, versions, accounts := filepath.Join(dir, "data"), filepath.Join(dir, "versions"), filepath.Join(dir, "accounts")
	for _, d := range []string{data, versions, accounts} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return nil, err
		}
	}
	address, release, err := port.Reserve()
	if err != nil {
		return nil, fmt.Errorf("reserve a port: %w", err)
	}
	tb.Cleanup(release)
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	s := &Server{
		Endpoint: Endpoint{
			Address: address, AccessKey: rand.Text(), SecretKey: rand.Text(), Region: "us-east-1", Bucket: options.Bucket,
		},
		program: program,
		// Without a directory for accounts, the server answers a wrong key with 404, unlike S3. And never use
		// --keep-alive: versitygw 1.8.0 sometimes takes what it left of a signed upload for the connection's next request.
		arguments: []string{"--port", address, "--health", healthPath, "--iam-dir", accounts},
		log:       log,
	}
	if s.Bucket == "" {
		s.Bucket = "varve"
	}
	tb.Cleanup(func() { s.end(tb) })
	if options.TLS {
		if err := s.certify(dir); err != nil {
			return nil, err
		}
	}
	s.arguments = append(s.arguments, "posix")
	if options.Versioning || options.ObjectLock {
		s.arguments = append(s.arguments, "--versioning-dir", versions)
	}
	s.arguments = append(s.arguments, data)
	return s, nil
}

func (s *Server) makeBucket(tb testing.TB, options Options) error {
	tb.Helper()
	client := s.Client(tb)
	err := client.MakeBucket(tb.Context(), s.Bucket, minio.MakeBucketOptions{Region: s.Region, ObjectLocking: options.ObjectLock})
	if err == nil && options.Versioning && !options.ObjectLock {
		err = client.EnableVersioning(tb.Context(), s.Bucket)
	}
	return err
}

// URL returns the server's URL.
func (e Endpoint) URL() string {
	if e.Authority != nil {
		return "https://" + e.Address
	}
	return "http://" + e.Address
}

// Client returns a client whose connections end with the test. It retries failures, as minio-go does by default,
// unless edit sets MaxRetries to 1.
func (e Endpoint) Client(tb testing.TB, edit ...func(*minio.Options)) *minio.Client {
	tb.Helper()
	client, transport, err := e.newClient(edit...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(transport.CloseIdleConnections)
	return client
}

// NewClient is Client outside of a test. Its connections end with the process.
func (e Endpoint) NewClient() (*minio.Client, error) {
	client, _, err := e.newClient()
	return client, err
}

func (e Endpoint) newClient(edit ...func(*minio.Options)) (*minio.Client, *http.Transport, error) {
	transport := e.transport()
	options := &minio.Options{
		Creds:        credentials.NewStaticV4(e.AccessKey, e.SecretKey, ""),
		Secure:       e.Authority != nil,
		Transport:    transport,
		Region:       e.Region,
		BucketLookup: minio.BucketLookupPath,
	}
	for _, f := range edit {
		f(options)
	}
	client, err := minio.New(e.Address, options)
	if err != nil {
		return nil, nil, fmt.Errorf("make a client of %s: %w", e.URL(), err)
	}
	return client, transport, nil
}

func (e Endpoint) transport() *http.Transport {
	// No transparent compression: S3 signs the request, and an object is exactly what was put.
	t := &http.Transport{DisableCompression: true}
	if e.Authority != nil {
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(e.Authority)
		t.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	return t
}

// Kill kills the server, as kill -9 does, and returns when it is dead. Its address refuses connections until Restart.
func (s *Server) Kill(tb testing.TB) {
	tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		tb.Fatal("the S3 server is not running")
	}
	s.process.Kill()
	s.process = nil
}

// Restart starts the server with its previous data and address, and returns when it answers. It kills a running server first.
func (s *Server) Restart(tb testing.TB) {
	tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process != nil {
		s.process.Kill()
		s.process = nil
	}
	environment := []string{"ROOT_ACCESS_KEY=" + s.AccessKey, "ROOT_SECRET_KEY=" + s.SecretKey}
	p, err := process.Start(s.program, s.arguments, environment, s.log)
	if err != nil {
		tb.Fatalf("start an S3 server: %v", err)
	}
	s.process = p
	if err := s.ready(context.Background(), p); err != nil {
		tb.Fatalf("start an S3 server: %v", err)
	}
}

// end kills the running process and prints the log if the test failed.
func (s *Server) end(tb testing.TB) {
	tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process != nil {
		s.process.Kill()
		s.process = nil
	}
	if tb.Failed() {
		tb.Logf("log of the S3 server at %s:\n%s", s.Address, process.Tail(s.log))
	}
	if err := s.log.Close(); err != nil {
		tb.Errorf("close the log: %v", err)
	}
}

// Program returns the path of a program that `make peers` builds: versitygw or kopia.
func Program(tb testing.TB, name string) string {
	tb.Helper()
	path, err := find(name)
	if err != nil {
		tb.Fatal(err)
	}
	return path
}

// find returns the path of a peer's program.
func find(program string) (string, error) {
	dir := os.Getenv("VARVE_PEERS")
	if dir == "" {
		root, err := checkout.Root()
		if err != nil {
			return "", fmt.Errorf("%w; or set VARVE_PEERS", err)
		}
		dir = filepath.Join(root, "build", "peers", "bin")
	}
	path := filepath.Join(dir, program)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%w: run `make peers`, or set VARVE_PEERS", err)
	}
	return path, nil
}
