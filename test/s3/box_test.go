package s3

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// describe writes what `box s3 up` writes.
func describe(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	authority, credentials := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "credentials")
	for path, text := range map[string]string{
		authority:   "PEM",
		credentials: "[default]\naws_access_key_id=ACCESS\naws_secret_access_key=SECRET\n",
		filepath.Join(dir, "s3.json"): fmt.Sprintf(`{"endpoint": "https://10.213.0.1:7070", "region": "us-east-1", "bucket": "varve",
			"lockedBucket": "varve-locked", "caFile": %q, "credentialsFile": %q}`, authority, credentials),
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestOnBox_readsTheDescription(t *testing.T) {
	t.Parallel()
	plain, locked, err := OnBox(describe(t))
	if err != nil {
		t.Fatal(err)
	}
	want := Endpoint{Address: "10.213.0.1:7070", AccessKey: "ACCESS", SecretKey: "SECRET", Region: "us-east-1", Bucket: "varve", Authority: []byte("PEM")}
	if diff := cmp.Diff(want, plain); diff != "" {
		t.Error(diff)
	}
	want.Bucket = "varve-locked"
	if diff := cmp.Diff(want, locked); diff != "" {
		t.Error(diff)
	}
}

func TestOnBox_saysWhatIsMissing(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"s3.json", "ca.crt", "credentials"} {
		dir := describe(t)
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		if _, _, err := OnBox(dir); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("without %s: %v", name, err)
		}
	}
	if _, _, err := OnBox(t.TempDir()); err == nil || !strings.Contains(err.Error(), "make box-s3") {
		t.Errorf("without a service: %v", err)
	}
}
