package httpserver

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/utils/clock"

	"github.com/varvebackup/varve/test/authority"
)

// The kubelet replaces certificates while the pod runs.
func TestCertificateFiles_areReadAgain(t *testing.T) {
	t.Parallel()
	first, second := authority.New(t).Files(t), authority.New(t).Files(t)
	c := NewCertificateFiles(filepath.Join(first, "server-cert.pem"), filepath.Join(first, "server-key.pem"), clock.RealClock{})
	serial := func() string {
		t.Helper()
		pair, err := c.Get(nil)
		if err != nil {
			t.Fatal(err)
		}
		return pair.Leaf.SerialNumber.String()
	}
	old := serial()
	for _, name := range []string{"server-cert.pem", "server-key.pem"} {
		text, err := os.ReadFile(filepath.Join(second, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(first, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
		c.at = time.Now().Add(-certificateAge) // half of it is replaced after the first round
		if name == "server-cert.pem" && serial() != old {
			t.Error("a certificate without its key is used")
		}
	}
	if serial() == old {
		t.Error("the certificate is not read again")
	}
	if _, err := NewCertificateFiles("none", "none", clock.RealClock{}).Get(nil); err == nil {
		t.Error("no certificate is no error")
	}
}
