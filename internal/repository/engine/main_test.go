package engine

import (
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kopia/kopia/repo/blob"

	"github.com/varvebackup/varve/internal/repository/storage"
)

// TestMain makes property tests cheap unless somebody sets how thorough they are.
func TestMain(m *testing.M) {
	storage.Register()
	flag.Parse()
	given := map[string]bool{}
	flag.Visit(func(f *flag.Flag) { given[f.Name] = true })
	for name, value := range map[string]string{"rapid.checks": "8", "rapid.steps": "12"} {
		if !given[name] {
			if err := flag.Set(name, value); err != nil {
				panic(err)
			}
		}
	}
	os.Exit(m.Run())
}

const testPassword = "a password for tests"

// packFile returns the file of a pack of the repository of formatted.
func packFile(tb testing.TB, configFile string, pack blob.ID) (file string) {
	tb.Helper()
	root := filepath.Join(filepath.Dir(filepath.Dir(configFile)), "blobs")
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		relative, err := filepath.Rel(root, path)
		if strings.ReplaceAll(relative, string(filepath.Separator), "") == string(pack)+".f" {
			file = path
		}
		return err
	})
	if err != nil || file == "" {
		tb.Fatalf("no file of pack %s: %v", pack, err)
	}
	return file
}
