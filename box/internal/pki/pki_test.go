package pki

import (
	"crypto/x509"
	"net"
	"os"
	"testing"
	"time"
)

var epoch = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

var leaf = Leaf{
	CommonName: "server", Organizations: []string{"group"}, DNSNames: []string{"name"}, IPs: []net.IP{net.IPv4(10, 0, 0, 1)},
}

// made returns the serial number of the leaf that Ensure returns at the time now.
func made(t *testing.T, dir string, l Leaf, now time.Time) string {
	t.Helper()
	ca, err := Open(dir, "ca", now)
	if err != nil {
		t.Fatal(err)
	}
	p, err := ca.Ensure("leaf", l)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	opts := x509.VerifyOptions{Roots: roots, DNSName: "name", CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	if _, err := p.cert.Verify(opts); err != nil {
		t.Errorf("the leaf does not verify: %v", err)
	}
	return p.cert.SerialNumber.String()
}

func TestEnsureKeeps(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if a, b := made(t, dir, leaf, epoch), made(t, dir, leaf, epoch.Add(300*24*time.Hour)); a != b {
		t.Error("a good certificate was made anew")
	}
}

func TestEnsureRenews(t *testing.T) {
	t.Parallel()
	other := leaf
	other.IPs = []net.IP{net.IPv4(10, 0, 0, 2)}
	for name, tc := range map[string]struct {
		damage func(dir string) error
		leaf   Leaf
		now    time.Time
	}{
		"near its expiry":       {nil, leaf, epoch.Add(340 * 24 * time.Hour)},
		"from the future":       {nil, leaf, epoch.Add(-24 * time.Hour)},
		"authority near expiry": {nil, leaf, epoch.Add(10*365*24*time.Hour - time.Hour)},
		"other address":         {nil, other, epoch},
		"empty certificate":     {func(d string) error { return os.Truncate(d+"/leaf.crt", 0) }, leaf, epoch},
		"half a key":            {func(d string) error { return os.Truncate(d+"/leaf.key", 50) }, leaf, epoch},
		"key lost":              {func(d string) error { return os.Remove(d + "/leaf.key") }, leaf, epoch},
		"another's key":         {func(d string) error { return os.Rename(d+"/ca.key", d+"/leaf.key") }, leaf, epoch},
		"authority lost":        {func(d string) error { return os.Remove(d + "/ca.crt") }, leaf, epoch},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			before := made(t, dir, leaf, epoch)
			if tc.damage != nil {
				if err := tc.damage(dir); err != nil {
					t.Fatal(err)
				}
			}
			if made(t, dir, tc.leaf, tc.now) == before {
				t.Error("the certificate was kept")
			}
		})
	}
}

func TestEnsureKey(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	read := func() string {
		t.Helper()
		_, pub, err := EnsureKey(dir, "sa")
		if err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(pub)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	first := read()
	if read() != first {
		t.Error("a good key was made anew")
	}
	if err := os.Truncate(dir+"/sa.pub", 0); err != nil {
		t.Fatal(err)
	}
	if read() != first {
		t.Error("the public key was not restored from the private one")
	}
	if err := os.Truncate(dir+"/sa.key", 10); err != nil {
		t.Fatal(err)
	}
	if read() == first {
		t.Error("a damaged key was kept")
	}
}
