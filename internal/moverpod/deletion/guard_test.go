package deletion

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/test/verdict"
)

// A restore point counts as deleted, or as pinned, because of what is known of it, and not because the repository is gone from where it was
// or another one has its place.
func TestRemove_takesNoFailureForAnAnswer(t *testing.T) {
	t.Parallel()
	for name, happens := range map[string]func(s *site) error{
		"the format is gone": func(s *site) error { return os.Remove(filepath.Join(s.access.Directory, "kopia.repository.f")) },
		"nothing is mounted": func(s *site) error {
			return errors.Join(os.RemoveAll(s.access.Directory), os.Mkdir(s.access.Directory, 0o700))
		},
		"the format is another one": func(s *site) error {
			format := func(s *site) string { return filepath.Join(s.access.Directory, "kopia.repository.f") }
			return os.Rename(format(newSite(s.T)), format(s))
		},
		"another repository is there": func(s *site) error {
			other := newSite(s.T).access.Directory
			return errors.Join(os.RemoveAll(s.access.Directory), os.Rename(other, s.access.Directory))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			id := s.point("a", "monday")
			s.withRepository(func(r *repository.Repository) {
				if err := happens(s); err != nil {
					t.Fatal(err)
				}
				if pinned, err := remove(t.Context(), r, []string{id}); err == nil || len(pinned) > 0 {
					t.Errorf("%v %v", pinned, err)
				}
			})
		})
	}
}

// What is pinned or gone since somebody looked does not keep the others.
func TestRemove_deletesTheOthers(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a, b := s.point("a", ""), s.point("b", "")
	s.pin(b)
	s.withRepository(func(r *repository.Repository) {
		pinned, err := remove(t.Context(), r, []string{strings.Repeat("e", 32), b, a})
		if err != nil || !slices.Equal(pinned, []string{b}) {
			t.Errorf("%v %v", pinned, err)
		}
	})
	if got := s.points(); got != "b" {
		verdict.Errorf(t, "left: %q", got)
	}
}
