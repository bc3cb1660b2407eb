package serve

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/test/verdict"
)

// model is what an overlay must hold.
type model struct {
	t         *rapid.T
	path      string
	below     content
	kept      content // what below was
	o         *Overlay
	want      content
	unflushed extent.Set
}

func newModel(t *rapid.T, dir string) *model {
	size := rapid.IntRange(1, 5*clusterBytes).Draw(t, "bytes")
	m := &model{t: t, path: filepath.Join(dir, "overlay"), below: make(content, size)}
	for i := range m.below {
		m.below[i] = byte(i*7+i>>8) | 1
	}
	m.kept, m.want = bytes.Clone(m.below), bytes.Clone(m.below)
	m.open()
	return m
}

func (m *model) open() {
	var err error
	if m.o, err = OpenOverlay(m.path, "disk", m.below); err != nil {
		m.t.Fatal(err)
	}
}

func (m *model) extent() extent.Extent {
	at := rapid.IntRange(0, len(m.want)-1).Draw(m.t, "at")
	return extent.Extent{Offset: int64(at), Length: int64(rapid.IntRange(1, len(m.want)-at).Draw(m.t, "length"))}
}

// done is called after a change of e.
func (m *model) done(e extent.Extent, err error) {
	if err != nil {
		m.t.Fatal(err)
	}
	m.unflushed = m.unflushed.Union(extent.NewSet(e))
}

func (m *model) content() content {
	got := make(content, len(m.want))
	if err := m.o.ReadAt(m.t.Context(), got, 0); err != nil {
		m.t.Fatal(err)
	}
	return got
}

func (m *model) actions() map[string]func(*rapid.T) {
	ctx := m.t.Context()
	return map[string]func(*rapid.T){
		"": func(*rapid.T) {
			if !bytes.Equal(m.content(), m.want) {
				verdict.Fatalf(m.t, "the overlay differs")
			}
			if !bytes.Equal(m.below, m.kept) {
				verdict.Fatalf(m.t, "the disk below was written")
			}
		},
		"write": func(t *rapid.T) {
			e := m.extent()
			p := bytes.Repeat([]byte{rapid.Byte().Draw(t, "byte")}, int(e.Length))
			copy(m.want[e.Offset:], p)
			m.done(e, m.o.WriteAt(ctx, p, e.Offset))
		},
		"zero": func(t *rapid.T) {
			e := m.extent()
			clear(m.want[e.Offset:e.End()])
			m.done(e, m.o.WriteZeroes(ctx, e, rapid.Bool().Draw(t, "no hole"), false))
		},
		"trim": func(*rapid.T) {
			e := m.extent()
			m.done(e, m.o.Trim(ctx, e))
			for i, got := range m.content()[e.Offset:e.End()] {
				if was := &m.want[int(e.Offset)+i]; got != *was && got != 0 {
					verdict.Fatalf(m.t, "trim made %d of %d", got, *was)
				} else {
					*was = got
				}
			}
		},
		"flush": func(*rapid.T) {
			if err := m.o.Flush(ctx); err != nil {
				m.t.Fatal(err)
			}
			m.unflushed = extent.Set{}
		},
		"reopen": func(*rapid.T) {
			if err := m.o.Close(); err != nil {
				m.t.Fatal(err)
			}
			m.unflushed = extent.Set{}
			m.open()
		},
		// Of what was not flushed anything may be left.
		"die": func(*rapid.T) {
			if err := m.o.releaseFile(); err != nil {
				m.t.Fatal(err)
			}
			m.open()
			got := m.content()
			for e := range m.unflushed.All() {
				copy(m.want[e.Offset:e.End()], got[e.Offset:])
			}
		},
	}
}

// An overlay is a disk that takes writes, whatever their shape, and what was flushed is there when it is opened again, also after a death.
func TestOverlay_takesWrites(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		m := newModel(rt, t.TempDir())
		rt.Repeat(m.actions())
		if err := m.o.Close(); err != nil {
			rt.Fatal(err)
		}
	})
}

// open opens an overlay with one cluster that was written, over a disk of three.
func open(t *testing.T) (o *Overlay, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "overlay")
	o, err := OpenOverlay(path, "disk", make(content, 3*clusterBytes))
	if err != nil {
		t.Fatal(err)
	}
	if err := o.WriteAt(t.Context(), []byte("written"), clusterBytes); err != nil {
		t.Fatal(err)
	}
	return o, path
}

func TestOverlay_thatIsRefused(t *testing.T) {
	t.Parallel()
	disk := make(content, 3*clusterBytes)
	write := func(t *testing.T, path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(t *testing.T, path string) {
		t.Helper()
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		spoil func(t *testing.T, path string)
		token string
		below content
		class error
		text  string
	}{
		"of another disk":            {token: "another", class: errclass.Invalid, text: "another disk"},
		"of a disk of another size":  {below: make(content, 100*clusterBytes), class: errclass.Invalid, text: "another size"},
		"without its map":            {spoil: func(t *testing.T, path string) { t.Helper(); remove(t, path+".map") }, class: errclass.Invalid, text: "no map"},
		"that is only a map":         {spoil: remove, class: errclass.Corrupt, text: "0 bytes"},
		"that was cut":               {spoil: func(t *testing.T, path string) { t.Helper(); write(t, path, "short") }, class: errclass.Corrupt, text: "5 bytes"},
		"with a map that is damaged": {spoil: func(t *testing.T, path string) { t.Helper(); write(t, path+".map", "varvecow and so on") }, class: errclass.Corrupt, text: "damaged"},
		"with a map of a later version": {spoil: func(t *testing.T, path string) {
			t.Helper()
			header := append([]byte("\x02\x00\x00\x00and what that has"), make([]byte, sectorBytes)...)[:sectorBytes-len(mapMagic)-4]
			write(t, path+".map", mapMagic+string(sum(header))+string(header)+"and more")
		}, class: errclass.Invalid, text: "version 2, and this program knows 1"},
		"with a map of no bytes":   {spoil: func(t *testing.T, path string) { t.Helper(); write(t, path+".map", "") }, class: errclass.Corrupt, text: "damaged"},
		"that another process has": {spoil: func(t *testing.T, path string) { t.Helper(); keep(t, path) }, class: errclass.Conflict, text: "has it"},
		"in a directory that is not one": {spoil: func(t *testing.T, path string) {
			t.Helper()
			remove(t, path)
			remove(t, path+".map")
			remove(t, filepath.Dir(path))
		}, class: os.ErrNotExist, text: "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, path := open(t)
			if err := o.Close(); err != nil {
				t.Fatal(err)
			}
			if c.spoil != nil {
				c.spoil(t, path)
			}
			token, below := "disk", disk
			if c.token != "" {
				token = c.token
			}
			if c.below != nil {
				below = c.below
			}
			_, err := OpenOverlay(path, token, below)
			if !errors.Is(err, c.class) || !strings.Contains(err.Error(), c.text) || !strings.Contains(err.Error(), path) {
				t.Errorf("%v, want %v with %q", err, c.class, c.text)
			}
		})
	}
}

// keep opens an overlay until the test ends.
func keep(t *testing.T, path string) {
	t.Helper()
	o, err := OpenOverlay(path, "disk", make(content, 3*clusterBytes))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	})
}

// slow is a disk of zeroes that answers reads when it is told to.
type slow struct {
	content
	asked, answer chan struct{}
}

func (s slow) ReadAt(context.Context, []byte, int64) error {
	s.asked <- struct{}{}
	<-s.answer
	return nil
}

// While a write waits for the repository or a flush for the storage, what the file has can be read and written.
func TestOverlay_keepsNobodyWaitingForTheSlow(t *testing.T) {
	t.Parallel()
	below := slow{make(content, 9*clusterBytes), make(chan struct{}), make(chan struct{})}
	o, err := OpenOverlay(filepath.Join(t.TempDir(), "overlay"), "disk", below)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.WriteAt(t.Context(), bytes.Repeat([]byte{1}, clusterBytes), 0); err != nil {
		t.Fatal(err)
	}
	use := func() {
		t.Helper()
		p := make([]byte, 100)
		if err := o.ReadAt(t.Context(), p, 5); err != nil || p[0] != 1 {
			verdict.Errorf(t, "%d, %v", p[0], err)
		}
		if err := o.WriteAt(t.Context(), []byte{2}, 1000); err != nil {
			t.Error(err)
		}
	}
	wrote, flushed := make(chan error), make(chan error)
	go func() { wrote <- o.WriteAt(t.Context(), []byte{3}, 2*clusterBytes) }()
	<-below.asked
	use()
	syncing, synced, sync := make(chan struct{}), make(chan struct{}), o.storage.sync
	o.storage.sync = func(f *os.File) error {
		if f == o.file {
			close(syncing)
			<-synced
		}
		return sync(f)
	}
	go func() { flushed <- o.Flush(t.Context()) }()
	<-syncing
	use()
	close(below.answer)
	if err := <-wrote; err != nil {
		t.Error(err)
	}
	close(synced)
	if err := <-flushed; err != nil {
		t.Error(err)
	}
	o.storage.sync = sync
	if err := o.Close(); err != nil {
		t.Error(err)
	}
}

// Two that write parts of a cluster at once both find it missing: the one that comes second must not put back what was below.
func TestOverlay_joinsWritesToOneCluster(t *testing.T) {
	t.Parallel()
	below := slow{make(content, clusterBytes), make(chan struct{}), make(chan struct{})}
	o, err := OpenOverlay(filepath.Join(t.TempDir(), "overlay"), "disk", below)
	if err != nil {
		t.Fatal(err)
	}
	wrote := make(chan error)
	for _, at := range []int64{0, clusterBytes - 1} {
		go func() { wrote <- o.WriteAt(t.Context(), []byte{1}, at) }()
		<-below.asked
	}
	close(below.answer)
	for range 2 {
		if err := <-wrote; err != nil {
			t.Error(err)
		}
	}
	p := make([]byte, clusterBytes)
	if err := o.ReadAt(t.Context(), p, 0); err != nil || p[0] != 1 || p[clusterBytes-1] != 1 {
		verdict.Errorf(t, "%d and %d: %v", p[0], p[clusterBytes-1], err)
	}
	if err := o.Close(); err != nil {
		t.Error(err)
	}
}

// What the kernel could not write it forgets: no later flush may say that it is there.
func TestFlush_staysFailed(t *testing.T) {
	t.Parallel()
	o, path := open(t)
	sync := o.storage.sync
	o.storage.sync = func(*os.File) error { return unix.EIO }
	for range 2 {
		if err := o.Flush(t.Context()); !errors.Is(err, unix.EIO) || !strings.Contains(err.Error(), path) {
			t.Errorf("%v", err)
		}
		o.storage.sync = sync
	}
	if err := o.Close(); !errors.Is(err, unix.EIO) {
		t.Errorf("%v", err)
	}
}

// Zeroes and what was trimmed take no space.
func TestZeroesTakeNoSpace(t *testing.T) {
	t.Parallel()
	o, path := open(t)
	used := func() int64 {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		return st.Blocks * 512
	}
	whole := extent.Extent{Length: o.Size()}
	if err := o.WriteZeroes(t.Context(), whole, true, true); err != nil && !errors.Is(err, unix.ENOTSUP) {
		t.Fatal(err)
	} else if err == nil && used() < o.Size() {
		t.Errorf("%d bytes are used after zeroes that may not be a hole", used())
	}
	for range 2 {
		if err := o.Trim(t.Context(), whole); err != nil {
			t.Fatal(err)
		}
		if used() > 0 {
			t.Errorf("%d bytes are used", used())
		}
		if err := o.WriteAt(t.Context(), make([]byte, o.Size()), 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := o.Close(); err != nil {
		t.Error(err)
	}
}

// asked counts the bytes that it is asked about.
type asked struct {
	content
	bytes *int64
}

func (a asked) Size() int64 { return 64 << 30 }

func (a asked) NextRun(_ context.Context, e extent.Extent) (int64, bool, error) {
	*a.bytes += e.Length
	return min(e.Length, clusterBytes), e.Offset/clusterBytes%2 == 0, nil
}

// The map of a large disk is made without looking at all of the rest for each run.
func TestMap_isMadeInPieces(t *testing.T) {
	t.Parallel()
	var seen int64
	o, err := OpenOverlay(filepath.Join(t.TempDir(), "overlay"), "disk", asked{bytes: &seen})
	if err != nil {
		t.Fatal(err)
	}
	runs := 0
	err = o.BlockStatus(t.Context(), allocation, extent.Extent{Length: o.Size()}, func(int64, uint64) bool { runs++; return runs < 1000 })
	if err != nil || runs != 1000 || seen > 1000*lookBytes {
		t.Errorf("%d runs, %d bytes: %v", runs, seen, err)
	}
	if err := o.Close(); err != nil {
		t.Error(err)
	}
}
