package s3

import (
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/varvebackup/varve/box/internal/layout"
)

func openService(t *testing.T, box layout.Box, bridge string) *Service {
	t.Helper()
	s, err := Open(box, netip.MustParseAddr(bridge), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func secrets(t *testing.T, s *Service) string {
	t.Helper()
	data, err := s.Secrets()
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestOpen_keepsWhatIsThere(t *testing.T) {
	t.Parallel()
	box := layout.Box(t.TempDir())
	first := openService(t, box, "10.213.0.1")
	before := secrets(t, first)
	again := openService(t, box, "10.213.0.1")
	if diff := cmp.Diff(first.Description, again.Description); diff != "" {
		t.Error(diff)
	}
	if secrets(t, again) != before {
		t.Error("the certificate or the keys changed")
	}
	// Another address needs another certificate, and keeps the keys.
	moved := openService(t, box, "10.214.0.1")
	if secrets(t, moved) == before || moved.accessKey != first.accessKey || moved.Endpoint != "https://10.214.0.1:7070" {
		t.Errorf("moved: %+v", moved.Description)
	}
}

func TestOpen_makesKeysAnew(t *testing.T) {
	t.Parallel()
	for what, content := range map[string]string{"empty": "", "cut": "[default]\naws_access_key_id=AAAAAAAAAAAAAAAAAAAAAAAAAA\n"} {
		box := layout.Box(t.TempDir())
		first := openService(t, box, "10.213.0.1")
		if err := os.WriteFile(first.CredentialsFile, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		again := openService(t, box, "10.213.0.1")
		if again.accessKey == "" || again.accessKey == first.accessKey || again.secretKey == first.secretKey {
			t.Errorf("%s: the keys are not new", what)
		}
		if info, err := os.Stat(again.CredentialsFile); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", what, info.Mode(), err)
		}
	}
}

// Clients of S3 keep their connections. versitygw does not unless it is told to.
func TestArguments_keepConnections(t *testing.T) {
	t.Parallel()
	if args := openService(t, layout.Box(t.TempDir()), "10.213.0.1").Arguments(); !slices.Contains(args, "--keep-alive") {
		t.Errorf("%q", args)
	}
}
