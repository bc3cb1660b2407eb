package mount

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// secretVolume makes a volume as the kubelet does: keys are links through a link to a directory of their generation.
func secretVolume(t *testing.T, pods string) string {
	t.Helper()
	dir := filepath.Join(pods, "uid", "volumes", "kubernetes.io~secret", "tunnel")
	if err := os.MkdirAll(filepath.Join(dir, "..2026_11_23"), 0o755); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"..data": "..2026_11_23", "token": "..data/token"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "..2026_11_23", "token"), []byte("secret"), 0o400); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestReadSecret_followsTheKubeletsLinksAndNoOthers(t *testing.T) {
	t.Parallel()
	pods := t.TempDir()
	dir := secretVolume(t, pods)
	m, err := Open(pods)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close() // a handle
	if got, err := m.ReadSecret("uid", "tunnel", "token"); err != nil || string(got) != "secret" {
		t.Fatalf("%q, %v", got, err)
	}
	for name, read := range map[string][3]string{
		"another pod": {"other", "tunnel", "token"}, "another volume": {"uid", "other", "token"}, "another key": {"uid", "tunnel", "key"},
	} {
		if _, err := m.ReadSecret(types.UID(read[0]), read[1], read[2]); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, read := range map[string][3]string{
		"a pod above": {"..", "tunnel", "token"}, "a volume above": {"uid", "..", "token"}, "a key below": {"uid", "tunnel", "..data/token"},
	} {
		if _, err := m.ReadSecret(types.UID(read[0]), read[1], read[2]); !errors.Is(err, ErrUnsafePath) {
			t.Errorf("%s: %v", name, err)
		}
	}
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("the host's"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(dir, "escape")); err != nil {
		t.Fatal(err)
	}
	if got, err := m.ReadSecret("uid", "tunnel", "escape"); !errors.Is(err, ErrUnsafePath) {
		t.Errorf("%q, %v", got, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "long"), []byte(strings.Repeat("x", longestSecret+1)), 0o400); err != nil {
		t.Fatal(err)
	}
	if _, err := m.ReadSecret("uid", "tunnel", "long"); err == nil || strings.Contains(err.Error(), "xxx") {
		t.Errorf("%v", err)
	}
}
