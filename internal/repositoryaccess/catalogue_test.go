package repositoryaccess

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/location"
)

// stored makes the repositories of namespaces below a directory, and returns their unique IDs.
func stored(t *testing.T, s *Store, root datamove.Access, namespaces ...string) map[string]string {
	t.Helper()
	ids := map[string]string{}
	for _, name := range namespaces {
		a := below(root, name)
		a.Password = testPassword
		id, err := s.Prepare(t.Context(), a, location.Lock{})
		if err != nil {
			t.Fatal(err)
		}
		ids[name] = id
	}
	return ids
}

// checkCatalogue lists what is below root, where these namespaces have repositories.
func checkCatalogue(t *testing.T, s *Store, root datamove.Access, ids map[string]string) {
	t.Helper()
	names := slices.Sorted(maps.Keys(ids))
	var want []Found
	for _, name := range names {
		want = append(want, Found{Namespace: name, UniqueID: ids[name]})
	}
	got, err := s.List(t.Context(), root, nil, 10)
	if diff := cmp.Diff(Catalogue{Found: want}, got); diff != "" || err != nil {
		t.Errorf("all: %s %v", diff, err)
	}
	got, err = s.List(t.Context(), root, names[:1], 1)
	if diff := cmp.Diff(Catalogue{Found: want[1:2], More: len(want) > 2}, got); diff != "" || err != nil {
		t.Errorf("one that is not known: %s %v", diff, err)
	}
	got, err = s.List(t.Context(), root, names, 1)
	if diff := cmp.Diff(Catalogue{}, got); diff != "" || err != nil {
		t.Errorf("all are known: %s %v", diff, err)
	}
}

// Repositories are found without a password and without writing. What is no repository is none, and what may be one is said.
func TestList_findsRepositories(t *testing.T) {
	t.Parallel()
	s, dir := NewStore(time.Now, nil), t.TempDir()
	root := at(filepath.Join(dir, "plugins", "varve"))
	root.ReadOnly = true
	if got, err := s.List(t.Context(), root, nil, 10); err != nil || len(got.Found) > 0 {
		t.Errorf("nothing is there: %+v %v", got, err)
	}
	if _, err := os.Stat(root.Directory); !os.IsNotExist(err) {
		t.Errorf("a directory was made: %v", err)
	}
	writable := root
	writable.ReadOnly = false
	ids := stored(t, s, writable, "shop", "bank", "web")
	for _, name := range []string{"empty", "Not.A.Namespace"} {
		if err := os.Mkdir(filepath.Join(root.Directory, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root.Directory, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	before := tree(t, dir)
	checkCatalogue(t, s, root, ids)
	if found, err := s.Find(t.Context(), root, []string{"bank", "shop", "web"}); err != nil || found != "" {
		t.Errorf("%q %v", found, err)
	}
	if diff := cmp.Diff(before, tree(t, dir)); diff != "" {
		t.Errorf("it has written: %s", diff)
	}

	format := filepath.Join(root.Directory, "bank", "kopia.repository.f")
	if err := os.WriteFile(format, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := s.List(t.Context(), root, nil, 10)
	if err != nil || len(got.Found) != 2 || !strings.HasPrefix(got.Unread, "bank: its format: ") {
		t.Errorf("a format that cannot be read: %+v %v", got, err)
	}
	if err := os.Remove(format); err != nil {
		t.Fatal(err)
	}
	got, err = s.List(t.Context(), root, nil, 10)
	if err != nil || len(got.Found) != 2 || got.Unread != "bank: its format is lost, and a copy is there" {
		t.Errorf("a format that is lost: %+v %v", got, err)
	}
}

// tree returns the names of all that is below a directory.
func tree(t *testing.T, dir string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		names = append(names, path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// What a pod tells of a location fits into its termination message, however long the names are.
func TestSeen_catalogueFitsIntoAMessage(t *testing.T) {
	t.Parallel()
	s, dir := NewStore(time.Now, nil), t.TempDir()
	root := at(dir)
	for i := range catalogueBatch + 5 {
		name := filepath.Join(dir, fmt.Sprintf("%s-%02d", strings.Repeat("n", 60), i))
		if err := os.Mkdir(name, 0o700); err != nil {
			t.Fatal(err)
		}
		format := fmt.Sprintf(`{"tool":"x","uniqueID":"%s="}`, strings.Repeat("A", 43))
		if err := os.WriteFile(filepath.Join(name, "kopia.repository.f"), []byte(format), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	bad := filepath.Join(dir, "a-"+strings.Repeat("b", 61))
	if err := os.Mkdir(bad, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bad, "kopia.repository.f"), []byte(strings.Repeat(`"\`, 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	seen := (&Look{Task: TryLocation, Root: root, Catalogue: true}).Run(t.Context(), s)
	text := seen.Encode()
	if seen.Failure != "" || len(seen.Catalogue.Found) != catalogueBatch || !seen.Catalogue.More || seen.Catalogue.Unread == "" || len(text) > 4096 {
		t.Errorf("%d bytes: %s", len(text), text)
	}
	if again, err := DecodeSeen(string(text)); err != nil || !cmp.Equal(seen, again) {
		t.Errorf("%+v %v", again, err)
	}
	// An ID that no repository has is not taken for one.
	long := filepath.Join(dir, "a")
	if err := os.Mkdir(long, 0o700); err != nil {
		t.Fatal(err)
	}
	format := fmt.Sprintf(`{"tool":"x","uniqueID":"%s"}`, strings.Repeat("A", 4000))
	if err := os.WriteFile(filepath.Join(long, "kopia.repository.f"), []byte(format), 0o600); err != nil {
		t.Fatal(err)
	}
	if text := (&Look{Task: TryLocation, Root: root, Catalogue: true}).Run(t.Context(), s).Encode(); len(text) > 4096 {
		t.Errorf("%d bytes: %s", len(text), text)
	}
}
