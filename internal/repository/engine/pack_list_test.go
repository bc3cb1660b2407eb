package engine

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/kopia/kopia/repo/blob"
)

// cutStorage cuts off its first lists.
type cutStorage struct {
	blob.Reader

	cut  int
	err  error
	asks int
}

func (s *cutStorage) ListBlobs(_ context.Context, _ blob.ID, call func(blob.Metadata) error) error {
	s.asks++
	name := blob.ID("p1")
	if s.asks <= s.cut {
		name = "pOld"
	}
	if err := call(blob.Metadata{BlobID: name, Length: 7}); err != nil {
		return err
	}
	if s.asks <= s.cut {
		return s.err
	}
	return nil
}

// A list that is cut off is asked for again, and nothing of it is kept.
func TestListPacks_cutOff(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		storage cutStorage
		asks    int
		good    bool
	}{
		"whole":             {cutStorage{}, 1, true},
		"cut off":           {cutStorage{cut: 2, err: io.ErrUnexpectedEOF}, 3, true},
		"always cut off":    {cutStorage{cut: 99, err: io.ErrUnexpectedEOF}, listAttempts, false},
		"refused":           {cutStorage{cut: 99, err: errors.New("access denied")}, 1, false},
		"the last one good": {cutStorage{cut: listAttempts - 1, err: io.ErrUnexpectedEOF}, listAttempts, true},
	} {
		p, err := ListPacks(t.Context(), &c.storage)
		if (err == nil) != c.good || c.storage.asks != c.asks {
			t.Errorf("%s: %v after %d lists, want %d", name, err, c.storage.asks, c.asks)
		}
		if err == nil && (len(p.bytes) != 1 || p.bytes["p1"] != 7) {
			t.Errorf("%s: the packs %v", name, p.bytes)
		}
	}
}
