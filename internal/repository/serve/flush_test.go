package serve

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/test/verdict"
)

// large is a disk of zeroes that is not in memory.
type large struct{ content }

func (large) Size() int64 { return 8 << 40 }

func openOver(t *testing.T, path string, below base) *Overlay {
	t.Helper()
	o, err := OpenOverlay(path, "disk", below)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// put takes the cluster at an offset over, and flushes.
func put(t *testing.T, o *Overlay, at int64) {
	t.Helper()
	e := extent.Extent{Offset: at, Length: 1}.Widen(clusterBytes, o.Size())
	if err := errors.Join(o.WriteZeroes(t.Context(), e, false, false), o.Flush(t.Context())); err != nil {
		t.Fatal(err)
	}
}

// wrote makes an overlay count what it writes to its map.
func wrote(o *Overlay) (bytes *int64) {
	bytes = new(int64)
	writeAt, replace := o.storage.writeAt, o.storage.replace
	o.storage.writeAt = func(f *os.File, p []byte, offset int64) (int, error) {
		*bytes += int64(len(p))
		return writeAt(f, p, offset)
	}
	o.storage.replace = func(path string, data []byte) error {
		*bytes += int64(len(data))
		return replace(path, data)
	}
	return bytes
}

// What a flush adds to the map of a large disk is what is new, however much the overlay has already.
func TestFlush_writesWhatIsNew(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "overlay")
	o := openOver(t, path, large{})
	n := wrote(o)
	for window := range int64(4000) {
		if err := o.WriteZeroes(t.Context(), extent.Extent{Offset: window * 2 * windowBytes, Length: clusterBytes}, false, false); err != nil {
			t.Fatal(err)
		}
	}
	put(t, o, 0)
	if least := int64(4000 * sectorBytes); *n < least || *n > least+sectorBytes {
		t.Errorf("%d bytes for 4000 windows", *n)
	}
	for i, at := range []int64{clusterBytes, 2 * clusterBytes, windowBytes, o.Size() - 1} {
		*n = 0
		put(t, o, at)
		if *n != sectorBytes {
			t.Errorf("flush %d: %d bytes for one cluster", i, *n)
		}
		*n = 0
		put(t, o, at)
		if *n != 0 {
			t.Errorf("flush %d: %d bytes for nothing", i, *n)
		}
	}
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
	o = openOver(t, path, large{})
	n = wrote(o)
	put(t, o, 3*clusterBytes)
	if *n != sectorBytes || !o.clusters.hasExtent(extent.Extent{Length: 4 * clusterBytes}) || o.clusters.taken != 4002 {
		t.Errorf("opened again it writes %d bytes, and has %d windows", *n, o.clusters.taken)
	}
	if err := o.Close(); err != nil {
		t.Error(err)
	}
}

// The map does not grow without end, and what is written to keep it small is in proportion.
func TestMap_isMadeSmallAgain(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "overlay")
	o := openOver(t, path, large{})
	o.storage.sync = func(*os.File) error { return nil } // for speed
	n := wrote(o)
	const flushes = 3 * slackSectors
	for i := range int64(flushes) {
		at := i % 3968 * clusterBytes // one window, and then a second one
		put(t, o, at+i/3968*windowBytes)
		info, err := os.Stat(path + ".map")
		if err != nil || info.Size() > (slackSectors+5)*sectorBytes {
			t.Fatalf("%v, %v", info.Size(), err)
		}
	}
	if *n < flushes*sectorBytes || *n > (flushes+20)*sectorBytes {
		t.Errorf("%d bytes", *n)
	}
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
	o = openOver(t, path, large{})
	if e := (extent.Extent{Length: flushes * clusterBytes}); !o.clusters.hasExtent(e) {
		t.Error("clusters are gone")
	}
	if err := o.Close(); err != nil {
		t.Error(err)
	}
}

// deaths are copies of an overlay as a death at each step of its flushes leaves it.
type deaths struct {
	t    *testing.T
	o    *Overlay
	dirs []string
	// names are the steps, and flushed what was written before the last flush that had ended by then.
	names   []string
	flushed []content
	now     content
	// synced: what the map may say now is durable.
	synced bool
}

// die keeps what a death leaves now.
func (d *deaths) die(step string) {
	d.t.Helper()
	dir := filepath.Join(d.t.TempDir(), fmt.Sprint(len(d.dirs)))
	if err := os.CopyFS(dir, os.DirFS(filepath.Dir(d.o.file.Name()))); err != nil {
		d.t.Fatal(err)
	}
	d.dirs, d.names, d.flushed = append(d.dirs, dir), append(d.names, step), append(d.flushed, bytes.Clone(d.now))
}

// watch makes the overlay die at each step from now on.
func (d *deaths) watch() {
	real := d.o.storage
	d.o.storage.sync = func(f *os.File) error {
		d.die("before the sync of " + filepath.Ext(f.Name()))
		err := real.sync(f)
		d.die("after the sync of " + filepath.Ext(f.Name()))
		d.synced = d.synced || f == d.o.file
		return err
	}
	d.o.storage.writeAt = func(f *os.File, p []byte, offset int64) (int, error) {
		for n := 0; n < len(p); n += 100 {
			if _, err := real.writeAt(f, p[:n], offset); err != nil {
				return 0, err
			}
			d.die(fmt.Sprintf("when %d bytes were added", n))
		}
		if !d.synced {
			d.t.Error("the map was written before what it says was durable")
		}
		return real.writeAt(f, p, offset)
	}
	d.o.storage.replace = func(path string, data []byte) error {
		for n := 0; n < len(data); n += len(data)/3 + 1 {
			if err := os.WriteFile(path+".new", data[:n], 0o600); err != nil {
				return err
			}
			d.die(fmt.Sprintf("when %d bytes of a new map were written", n))
		}
		if !d.synced {
			d.t.Error("the map was replaced before what it says was durable")
		}
		err := real.replace(path, data)
		d.die("when the map was replaced")
		return err
	}
}

// TestFlush_survivesADeathAtEachStep: what was flushed is there, of what was not anything may be, and everything goes on. Flushes add to a map, and replace
// it because it grew.
func TestFlush_survivesADeathAtEachStep(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(7, 7))
	below := make(content, 60*clusterBytes)
	for i := range below {
		below[i] = byte(i>>8) | 1
	}
	path := filepath.Join(t.TempDir(), "overlay")
	d := &deaths{t: t, o: openOver(t, path, below), now: bytes.Clone(below)}
	d.watch()
	for n := range 6 {
		if n == 4 { // as if it had grown
			d.o.layout.sectors += 3 * slackSectors
		}
		before := bytes.Clone(d.now)
		for range 3 {
			p := bytes.Repeat([]byte{byte(2 * (n + 1))}, 1+random.IntN(clusterBytes))
			at := random.Int64N(below.Size() - int64(len(p)))
			if err := d.o.WriteAt(t.Context(), p, at); err != nil {
				t.Fatal(err)
			}
			copy(d.now[at:], p)
		}
		after := d.now
		d.now, d.synced = before, false
		if err := d.o.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		d.now = after
	}
	if err := d.o.Close(); err != nil {
		t.Fatal(err)
	}
	d.flushed = append(d.flushed, d.now)
	for i, dir := range d.dirs {
		d.recovers(t, filepath.Join(dir, "overlay"), below, d.names[i], d.flushed[i], d.flushed[i+1:])
	}
	if kinds := strings.Join(d.names, ";"); strings.Count(kinds, "was replaced") != 1 || strings.Count(kinds, "100 bytes were added") < 4 {
		t.Errorf("this test does not test anything: %s", kinds)
	}
}

// recovers opens what a death left. Each byte is what was flushed, or what the flush had that did not end.
func (d *deaths) recovers(t *testing.T, path string, below content, step string, flushed content, later []content) {
	t.Helper()
	next := later[len(later)-1]
	for _, l := range later {
		if !bytes.Equal(l, flushed) {
			next = l
			break
		}
	}
	for round := range 2 { // It goes on, and what it wrote is there.
		o := openOver(t, path, below)
		got := make(content, len(below))
		if err := o.ReadAt(t.Context(), got, 0); err != nil {
			t.Fatal(err)
		}
		for i := range got {
			if got[i] != flushed[i] && (round > 0 || got[i] != next[i]) {
				verdict.Fatalf(t, "%s: byte %d is %d, was flushed as %d, and would have been %d; round %d", step, i, got[i], flushed[i], next[i], round)
			}
		}
		flushed = got
		flushed[7*clusterBytes] = 0xee
		if err := o.WriteAt(t.Context(), []byte{0xee}, 7*clusterBytes); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(o.Flush(t.Context()), o.releaseFile()); err != nil {
			t.Fatal(err)
		}
	}
}

// A map that could not be added to is added to by the next flush; if nobody knows what became of the file, another one is written.
func TestFlush_storesAMapThatWasNotStored(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fail func(t *testing.T, o *Overlay)
		want error
		// bytes are written by the next flush.
		bytes int64
	}{
		"the disk is full": {func(_ *testing.T, o *Overlay) {
			o.storage.writeAt = func(f *os.File, p []byte, offset int64) (int, error) {
				n, _ := f.WriteAt(p[:100], offset)
				return n, unix.ENOSPC
			}
		}, unix.ENOSPC, sectorBytes},
		"it cannot be synced": {func(_ *testing.T, o *Overlay) {
			sync := o.storage.sync
			o.storage.sync = func(f *os.File) error {
				if f == o.file {
					return sync(f)
				}
				return unix.EIO
			}
		}, unix.EIO, 2 * sectorBytes},
		"it is gone": {func(t *testing.T, o *Overlay) {
			t.Helper()
			if err := os.Remove(o.mapPath()); err != nil {
				t.Fatal(err)
			}
		}, os.ErrNotExist, 2 * sectorBytes},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, path := open(t)
			if err := o.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			working := o.storage
			c.fail(t, o)
			err := errors.Join(o.WriteAt(t.Context(), []byte("again"), 0), o.Flush(t.Context()))
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), path) {
				t.Fatalf("%v", err)
			}
			o.storage = working
			n := wrote(o)
			if err := o.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			if *n != c.bytes {
				t.Errorf("%d bytes", *n)
			}
			if err := o.releaseFile(); err != nil {
				t.Fatal(err)
			}
			o = openOver(t, path, make(content, 3*clusterBytes))
			for at, want := range map[int64]string{0: "again", clusterBytes: "written"} {
				p := make([]byte, len(want))
				if err := o.ReadAt(t.Context(), p, at); err != nil || string(p) != want {
					verdict.Errorf(t, "%q, %v", p, err)
				}
			}
			if err := o.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
