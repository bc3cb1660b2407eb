package repository

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kopia/kopia/repo/blob"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
)

const (
	// testKeepTimeout is the KeepTimeout of backups whose storage falls silent.
	testKeepTimeout = 100 * time.Millisecond
	// cancelDeadline is by when they have ended, on a slow machine as well.
	cancelDeadline = 10 * time.Second
)

// fallSilent makes the storage answer no request any more once it has been asked for a blob with this prefix ("" for any) this many
// times more. The channel is closed then.
func (s *site) fallSilent(after int64, prefix string) <-chan struct{} {
	reached := make(chan struct{})
	var once sync.Once
	var asked atomic.Int64
	var begun atomic.Bool
	silent := func(id blob.ID) bool {
		if strings.HasPrefix(string(id), prefix) && asked.Add(1) > after {
			begun.Store(true)
		}
		if begun.Load() {
			once.Do(func() { close(reached) })
		}
		return begun.Load()
	}
	s.silent.Store(&silent)
	return reached
}

// endsWhenCancelled cancels an operation when the storage has fallen silent, and returns its error.
func endsWhenCancelled(t *testing.T, silent <-chan struct{}, do func(context.Context) error) error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- do(ctx) }()
	select {
	case <-silent:
	case err := <-ended:
		t.Fatalf("it ended before the storage fell silent: %v", err)
	}
	cancel()
	select {
	case err := <-ended:
		return err
	case <-time.After(cancelDeadline):
		t.Fatalf("it has not ended %s after it was cancelled", cancelDeadline)
	}
	return nil
}

// silentSite is a site with a restore point and a connection.
func silentSite(t *testing.T) (*site, *Repository, *memory, *RestorePoint) {
	t.Helper()
	s := newMemorySite(t)
	r, err := s.open(t.Context(), s.connect(t, "machine", !cached))
	if err != nil {
		t.Fatal(err)
	}
	r.conn.CloseTimeout = testKeepTimeout
	t.Cleanup(func() {
		if err := r.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	disk := &memory{data: make([]byte, 66*mib)}
	disk.write(rand.New(rand.NewPCG(1, 9)), extent.Extent{Offset: 20 * mib, Length: 46 * mib}, false)
	source := disk.source(false)
	p := mustBackUp(t, r, Request{Source: testSource, Time: time.Unix(1, 0), Disks: []DiskSource{source}})
	disk.write(rand.New(rand.NewPCG(2, 9)), extent.Extent{Offset: 0, Length: 66 * mib}, false)
	return s, r, disk, p
}

// A cancelled backup ends soon in every phase, although the storage answers nothing any more. Nothing is wrong afterwards.
func TestBackup_endsWhenCancelledOnASilentStorage(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		prefix string
		after  int64
		// publishing: the storage falls silent only then.
		publishing bool
	}{
		"at the beginning":         {},
		"after a few requests":     {after: 2},
		"storing the session":      {prefix: "q"},
		"storing the first index":  {prefix: "x"},
		"storing the first data":   {prefix: "p"},
		"storing more data":        {prefix: "p", after: 1},
		"publishing":               {publishing: true},
		"publishing the index":     {publishing: true, prefix: "x"},
		"after it was published":   {publishing: true, prefix: "varve."},
		"looking after publishing": {publishing: true, prefix: "n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, r, disk, p := silentSite(t)
			q := Request{
				ID: "0123456789abcdef0123456789abcdef", Source: testSource, Time: time.Unix(2, 0), Disks: []DiskSource{disk.source(true)}, KeepTimeout: testKeepTimeout, Workers: 2,
			}
			var silent <-chan struct{}
			if c.publishing {
				later := make(chan struct{})
				silent = later
				q.flushing = func() {
					reached := s.fallSilent(c.after, c.prefix)
					go func() {
						select {
						case <-reached:
						case <-time.After(time.Second): // There is no such request in this phase.
						}
						close(later)
					}()
				}
			} else {
				silent = s.fallSilent(c.after, c.prefix)
			}
			err := endsOrIsCancelled(t, silent, c.publishing, func(ctx context.Context) error { _, err := r.Backup(ctx, q); return err })
			switch {
			case c.publishing && err != nil && !errors.Is(err, errclass.Unknown):
				t.Errorf("%v, want success or errclass.Unknown", err)
			case !c.publishing && !errors.Is(err, context.Canceled):
				t.Errorf("%v, want %v", err, context.Canceled)
			}
			s.silent.Store(nil)
			q.flushing = nil
			fresh := s.opened(t, s.connect(t, "another machine", !cached))
			again := mustBackUp(t, fresh, q)
			same(t, fresh, again, disk.data)
			if points, err := fresh.List(t.Context(), nil); err != nil || len(points) != 2 || points[0].ID != p.ID {
				t.Errorf("%d restore points, %v", len(points), err)
			}
		})
	}
}

// endsOrIsCancelled is endsWhenCancelled for an operation that may also end without the silence having held it up.
func endsOrIsCancelled(t *testing.T, silent <-chan struct{}, mayEnd bool, do func(context.Context) error) error {
	t.Helper()
	if !mayEnd {
		return endsWhenCancelled(t, silent, do)
	}
	ended := make(chan error, 1)
	return endsWhenCancelled(t, silent, func(ctx context.Context) error {
		go func() { ended <- do(ctx) }()
		<-silent
		return <-ended
	})
}

func TestRestore_endsWhenCancelledOnASilentStorage(t *testing.T) {
	t.Parallel()
	for name, after := range map[string]int64{"at the beginning": 0, "in the middle": 5} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, r, _, p := silentSite(t)
			image, err := r.Image(t.Context(), p.Disks[0])
			if err != nil {
				t.Fatal(err)
			}
			silent := s.fallSilent(after, "p")
			err = endsWhenCancelled(t, silent, func(ctx context.Context) error {
				return image.Restore(ctx, discardTarget{}, RestoreOptions{Workers: 2})
			})
			if !errors.Is(err, context.Canceled) || errors.Is(err, errclass.Corrupt) {
				t.Error(err)
			}
		})
	}
}

// discardTarget takes everything and keeps nothing.
type discardTarget struct{}

func (discardTarget) WriteAt(context.Context, []byte, int64) error { return nil }
func (discardTarget) Zero(context.Context, extent.Extent) error    { return nil }
func (discardTarget) Sync(context.Context) error                   { return nil }

func TestVerify_endsWhenCancelledOnASilentStorage(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		prefix string
		after  int64
	}{"at the beginning": {}, "reading the format": {after: 1}, "reading data": {prefix: "p"}, "reading more data": {prefix: "p", after: 5}, "reading tables": {prefix: "q", after: 1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, r, _, _ := silentSite(t)
			silent := s.fallSilent(c.after, c.prefix)
			err := endsWhenCancelled(t, silent, func(ctx context.Context) error {
				_, err := r.Verify(ctx, VerifyOptions{Percent: 100, Workers: 2})
				return err
			})
			if !errors.Is(err, context.Canceled) || errors.Is(err, errclass.Corrupt) {
				t.Error(err)
			}
		})
	}
}

// failingReader fails once so many bytes have been read.
type failingReader struct {
	*memory
	after int64
	read  atomic.Int64
}

func (f *failingReader) ReadAt(ctx context.Context, p []byte, offset int64) error {
	if f.read.Add(int64(len(p))) > f.after {
		return errors.New("bad sector")
	}
	return f.memory.ReadAt(ctx, p, offset)
}

// Nobody waits for the end of a backup that fails by itself. It stores what it has, however little time a cancelled one has.
func TestBackup_keepsUploadsWhenItFails(t *testing.T) {
	t.Parallel()
	s, r, disk, _ := silentSite(t)
	s.changed = func(string, blob.ID) { time.Sleep(60 * time.Millisecond) }
	source := disk.source(true)
	source.Reader = &failingReader{memory: disk, after: 60 * mib}
	q := Request{Source: testSource, Time: time.Unix(2, 0), Disks: []DiskSource{source}, KeepTimeout: testKeepTimeout, Workers: 2}
	if _, err := r.Backup(t.Context(), q); err == nil {
		t.Fatal("it did not fail")
	}
	before := s.stored.Load()
	q.Disks[0].Reader = disk
	mustBackUp(t, r, q)
	if again := s.stored.Load() - before; again > 40*mib {
		t.Errorf("%d MiB were uploaded again", again/mib)
	}
}
