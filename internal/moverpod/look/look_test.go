package look

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/repository/storage"
	"github.com/varvebackup/varve/internal/repositoryaccess"
)

func TestMain(m *testing.M) {
	storage.Register()
	goleak.VerifyTestMain(m)
}

func TestRun_makesARepositoryAndFindsIt(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	root := filepath.Join(dir, "plugins", "varve")
	o := Options{PasswordFile: filepath.Join(dir, "password"), MessageFile: filepath.Join(dir, "termination-log"), Now: time.Now}
	if err := os.WriteFile(o.MessageFile, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	look := func(task repositoryaccess.Task, id string) repositoryaccess.Seen {
		t.Helper()
		l := &repositoryaccess.Look{
			Task: task, Root: datamove.Access{Directory: root}, Write: true, Access: datamove.Access{Directory: filepath.Join(root, "shop"), UniqueID: id}, SharedPassword: true,
			Words: repositoryaccess.Words{Place: "claim shelf", Password: "key password of Secret varve/p"},
		}
		o.Look = l.Encode()
		if err := Run(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(o.MessageFile)
		if err != nil {
			t.Fatal(err)
		}
		seen, err := repositoryaccess.DecodeSeen(string(text))
		if err != nil {
			t.Fatal(err)
		}
		return seen
	}
	if seen := look(repositoryaccess.TryLocation, ""); seen.Failure != "" {
		t.Errorf("%+v", seen)
	}
	if seen := look(repositoryaccess.LookAround, ""); seen.Failure != "" || seen.Exists || seen.Found != "" {
		t.Errorf("%+v", seen)
	}
	if err := os.WriteFile(o.PasswordFile, []byte("pa55wordTESTONLY\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	made := look(repositoryaccess.PrepareRepository, "")
	if made.Failure != "" || made.UniqueID == "" {
		t.Fatalf("%+v", made)
	}
	if seen := look(repositoryaccess.CheckRepository, made.UniqueID); seen.Failure != "" || seen.UniqueID != made.UniqueID {
		t.Errorf("%+v", seen)
	}
	if seen := look(repositoryaccess.LookAround, ""); !seen.Exists {
		t.Errorf("%+v", seen)
	}
	if err := os.WriteFile(o.PasswordFile, []byte("other"), 0o600); err != nil {
		t.Fatal(err)
	}
	if seen := look(repositoryaccess.PrepareRepository, made.UniqueID); !strings.Contains(seen.Failure, "put the right one into key password of Secret varve/p") {
		t.Errorf("%+v", seen)
	}
}
