package repository

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kopia/kopia/repo/blob"

	"github.com/varvebackup/varve/internal/repository/storage"
)

// A storage that refuses deletions, as a bucket's policy may, ends maintenance with the storage's error. kopia's own would wait
// forever with this many packs.
func TestMaintenance_endsWhenDeletionsAreRefused(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	r := s.opened(t, s.connect(t, "host", !cached))
	st, err := s.location().Open(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 300 {
		id := blob.ID(fmt.Sprintf("p%032x-s0", i))
		if err := st.PutBlob(t.Context(), id, storage.Bytes("nobody's"), blob.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	refused := errors.New("AccessDenied")
	refuse := func(id blob.ID) error {
		if strings.HasPrefix(string(id), "p") {
			return refused
		}
		return nil
	}
	s.refusesDelete.Store(&refuse)
	if err := r.Maintain(t.Context(), MaintenanceOptions{Mode: FullMaintenance, Exclusive: true}); !errors.Is(err, refused) {
		t.Errorf("deletions are refused: %v", err)
	}
	s.refusesDelete.Store(nil)
	if err := r.Maintain(t.Context(), MaintenanceOptions{Mode: FullMaintenance, Exclusive: true}); err != nil {
		t.Fatal(err)
	}
	left, err := blob.ListAllBlobs(t.Context(), st, "p0000")
	if err != nil || len(left) > 0 {
		t.Errorf("%d packs are left, %v", len(left), err)
	}
}
