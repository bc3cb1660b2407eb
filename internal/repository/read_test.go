package repository

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kopia/kopia/repo/blob"

	"github.com/varvebackup/varve/internal/errclass"
)

// A storage that fails a few times and then answers is not reported as damage.
func TestRead_aStorageThatAnswersAgainIsNoDamage(t *testing.T) {
	t.Parallel()
	for _, cache := range []bool{cached, !cached} {
		for _, prefix := range []string{"p", "q"} {
			for fails := range int64(16) {
				t.Run(fmt.Sprintf("cache %t, %s, %d times", cache, prefix, fails), func(t *testing.T) {
					t.Parallel()
					s := newMemorySite(t)
					d := newBitmapDisk(4 * mib)
					firstWeek(t, s.opened(t, s.connect(t, "machine", !cached)), d)
					r := s.opened(t, s.connect(t, "another machine", cache))
					var asked atomic.Int64
					fail := func(id blob.ID) error {
						if strings.HasPrefix(string(id), prefix) && asked.Add(1) <= fails {
							return errBroken
						}
						return nil
					}
					s.failing.Store(&fail)
					d.add("thursday")
					_, err := r.Backup(t.Context(), d.request("wednesday", "thursday", 4))
					if errors.Is(err, errclass.Corrupt) || errors.Is(err, errclass.NotFound) {
						t.Errorf("told as damage: %v", err)
					}
					points, err := r.List(t.Context(), nil)
					if errors.Is(err, errBroken) && !errors.Is(err, errclass.Corrupt) { // the backup left some of the failures to the list
						s.failing.Store(nil)
						points, err = r.List(t.Context(), nil)
					}
					if err != nil || len(points) < 3 {
						t.Errorf("%d restore points, %v", len(points), err)
					}
				})
			}
		}
	}
}
