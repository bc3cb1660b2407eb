package repository

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/format"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/repository/storage"
)

// A repository is deleted and made again at the same place, minutes after a backup. Nobody writes to the new one with the keys of
// the old one.
func TestBase_aRepositoryMadeAgainIsAnother(t *testing.T) {
	t.Parallel()
	for _, cache := range []bool{cached, !cached} {
		for _, opened := range []string{"before", "afterwards"} {
			t.Run(fmt.Sprintf("cache %t, opened %s", cache, opened), func(t *testing.T) {
				t.Parallel()
				s := newMemorySite(t)
				s.replaced = true
				config := s.connect(t, "machine", cache)
				d := newBitmapDisk(4 * mib)
				r := s.opened(t, config)
				firstWeek(t, r, d)
				s.memory.become(newMemorySite(t).memory.now())
				d.add("thursday")
				q := d.request("wednesday", "thursday", 4)
				if opened == "before" {
					changes := s.requests.now().puts
					if _, err := r.Backup(t.Context(), q); !errors.Is(err, errclass.Conflict) {
						t.Errorf("%v, want a conflict", err)
					}
					if put := s.requests.now().puts - changes; put > 0 {
						t.Errorf("%d blobs were put", put)
					}
				} else {
					p := mustBackUp(t, s.opened(t, config), q)
					if p.Disks[0].FullReason != FullNoParent {
						t.Errorf("full: %q", p.Disks[0].FullReason)
					}
					same(t, s.opened(t, s.connect(t, "another machine", !cached)), p, d.data)
				}
			})
		}
	}
}

// A repository is deleted and made again at the same place while a backup runs. The backup ends soon, and leaves no index there
// that nobody can read.
func TestBase_aRepositoryMadeAgainEndsABackup(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]int64{"in the middle": 20 * mib, "before it is published": 40*mib - DefaultBlockBytes} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newMemorySite(t)
			s.replaced = true
			config := s.connect(t, "machine", cached)
			r := s.opened(t, config)
			disk := &memory{data: make([]byte, 40*mib)}
			disk.write(rand.New(rand.NewPCG(1, 9)), extent.Extent{Length: 40 * mib}, false)
			replace := once(func() { s.memory.become(newMemorySite(t).memory.now()) })
			long := newLongBackup(s, time.Minute, 4, 0, nil)
			d := long.source(disk, false)
			var last int64
			d.Reader = &hookedReader{Reader: d.Reader, call: func(offset int64) {
				if last = offset; offset >= at {
					replace()
				}
			}}
			if _, err := long.backUp(t.Context(), r, Request{Source: testSource, Disks: []DiskSource{d}}); !errors.Is(err, storage.ErrReplaced) {
				t.Errorf("%v, want %v", err, storage.ErrReplaced)
			}
			if last > at+2*mib {
				t.Errorf("it went on to read at %d", last)
			}
			fresh := s.opened(t, s.connect(t, "another machine", !cached))
			if points, err := fresh.List(t.Context(), nil); err != nil || len(points) > 0 {
				t.Errorf("%d restore points, %v", len(points), err)
			}
			mustBackUp(t, fresh, Request{Source: testSource, Disks: []DiskSource{disk.source(false)}})
		})
	}
}

// A damaged format does not count as another repository's.
func TestUniqueID(t *testing.T) {
	t.Parallel()
	for data, want := range map[string]string{`{"uniqueID":"AQI="}`: "\x01\x02", "": "", "null": "", "{}": "", "noise": ""} {
		if id, err := storage.ParseUniqueID([]byte(data)); string(id) != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", data, id, err)
		}
	}
}

// If the storage does not answer just before a restore point is published, the backup ends as with any other failure: what it has
// stored is kept for the next one, and it does not count as running.
func TestBase_aFormatThatIsNotReadBeforeARestorePoint(t *testing.T) {
	t.Parallel()
	s := newMemorySite(t)
	r := s.opened(t, s.connect(t, "machine", !cached))
	broken := errors.New("no answer")
	q := newBitmapDisk(4*mib).request("", "monday", 1)
	q.settled = func() {
		var failed atomic.Bool
		failing := func(id blob.ID) error {
			if id == format.KopiaRepositoryBlobID && !failed.Swap(true) {
				return broken
			}
			return nil
		}
		s.failing.Store(&failing)
	}
	if _, err := r.Backup(t.Context(), q); !errors.Is(err, broken) {
		t.Fatalf("%v, want %v", err, broken)
	}
	if err := r.Maintain(t.Context(), MaintenanceOptions{Mode: QuickMaintenance, Exclusive: true}); err != nil {
		t.Error(err)
	}
}
