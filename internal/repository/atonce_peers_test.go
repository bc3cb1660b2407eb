//go:build peers

package repository

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/varvebackup/varve/test/s3"
)

func init() { verifiedByKopia = kopiaVerifies }

// kopiaVerifies makes the upstream kopia read everything in a repository.
func kopiaVerifies(t *testing.T, at Location) {
	t.Helper()
	dir := t.TempDir()
	config := filepath.Join(dir, "repository.config")
	if err := Connect(t.Context(), config, at, testPassword, ConnectOptions{CacheDirectory: filepath.Join(dir, "cache"), CacheBytes: 64 * mib, Host: "host", User: "kopia"}); err != nil {
		t.Fatal(err)
	}
	kopia := exec.CommandContext(t.Context(), s3.Program(t, "kopia"), "--config-file="+config, "--log-dir="+dir, "snapshot", "verify", "--verify-files-percent=100")
	kopia.Env = append(os.Environ(), "KOPIA_PASSWORD="+testPassword, "KOPIA_CHECK_FOR_UPDATES=false")
	out, err := kopia.CombinedOutput()
	if err != nil {
		t.Fatalf("kopia: %v\n%s", err, out)
	}
	t.Logf("kopia: %s", out)
}

// This is the same on S3, in the server's time: nothing becomes old enough to be freed, but indexes and packs are rewritten.
func TestEverythingAtOnceOnS3(t *testing.T) {
	t.Parallel()
	server := s3.Start(t, s3.Options{})
	at := Location{S3: &S3{
		Endpoint: server.Address, Bucket: server.Bucket, Region: server.Region, Prefix: "varve/", PlainHTTP: true,
		AccessKey: server.AccessKey, SecretKey: server.SecretKey,
	}}
	if err := Create(t.Context(), at, testPassword, CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	a := &atOnce{t: t, open: func(name string) (*Repository, error) {
		config := filepath.Join(dir, name+".config")
		if _, err := os.Stat(config); err != nil {
			o := ConnectOptions{CacheDirectory: filepath.Join(dir, name+".cache"), CacheBytes: 64 * mib, Host: name, User: "varve"}
			if err := Connect(t.Context(), config, at, testPassword, o); err != nil {
				return nil, err
			}
		}
		return Open(t.Context(), config, testPassword)
	}}
	a.run(6 * time.Second)
	kopiaVerifies(t, at)
}
