package main

import (
	"crypto/x509"
	"os"
	"os/exec"
	"testing"
)

// The image has nothing but the program, which has to trust the authorities that Amazon's S3, for one, has its certificates from.
func TestRoots_areThereInAnEmptyImage(t *testing.T) {
	t.Parallel()
	const child = "VARVE_TEST_WITHOUT_ROOTS"
	if os.Getenv(child) != "" {
		roots, err := x509.SystemCertPool()
		if err != nil || roots.Equal(x509.NewCertPool()) {
			t.Fatalf("the program trusts nobody: %v", err)
		}
		return
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestRoots_areThereInAnEmptyImage$")
	cmd.Env = append(os.Environ(), child+"=1", "SSL_CERT_FILE=/nonexistent", "SSL_CERT_DIR=/nonexistent")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
