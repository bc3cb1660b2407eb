//go:build nbd_interop

package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/nbd"
	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/test/verdict"
)

const sectorBytes = 512

// tagged returns a sector that was written with a tag: the tag repeated, so that a torn sector shows. Zeroes have tag
// 0.
func tagged(tag uint64) []byte {
	p := make([]byte, 0, sectorBytes)
	for len(p) < sectorBytes {
		p = binary.LittleEndian.AppendUint64(p, tag)
	}
	return p
}

// writer writes to its own part of a disk, and knows what each sector may hold after a crash.
type writer struct {
	t      *testing.T
	random *rand.Rand
	first  int64 // sector
	// may has the tags that each sector may hold after a crash: last the present one, and before it those since the
	// last flush.
	may  [][]uint64
	next uint64
	// flushes counts the successful flushes.
	flushes int
}

// part returns a random range of the writer's own sectors.
func (w *writer) part() (from, n int) {
	from = w.random.IntN(len(w.may))
	return from, 1 + w.random.IntN(min(len(w.may)-from, 300))
}

// step does one thing to the disk. Before it sends the request, it records what the request may change.
func (w *writer) step(ctx context.Context, c *nbd.Client) error {
	from, n := w.part()
	e := extent.Extent{Offset: (w.first + int64(from)) * sectorBytes, Length: int64(n) * sectorBytes}
	switch kind := w.random.IntN(10); kind {
	case 0:
		if err := c.Flush(ctx); err != nil {
			return err
		}
		w.flushes++
		for i := range w.may {
			w.settle(i)
		}
	case 1:
		w.expect(from, n, 0)
		return c.WriteZeroes(ctx, e, 0)
	case 2:
		for i := from; i < from+n; i++ {
			w.may[i] = slices.Insert(w.may[i], 0, 0) // it may do so or not
		}
		if err := c.Trim(ctx, e, 0); err != nil {
			return err
		}
		return w.learn(ctx, c, from, n)
	default:
		w.next++
		w.expect(from, n, w.next)
		p := bytes.Repeat(tagged(w.next), n)
		if kind != 3 {
			return c.WriteAt(ctx, p, e.Offset, 0)
		}
		if err := c.WriteAt(ctx, p, e.Offset, nbd.CmdFlagFUA); err != nil {
			return err
		}
		for i := from; i < from+n; i++ {
			w.settle(i)
		}
	}
	return nil
}

func (w *writer) expect(from, n int, tag uint64) {
	for i := from; i < from+n; i++ {
		w.may[i] = append(w.may[i], tag)
	}
}

// settle records that what a sector holds now is durable.
func (w *writer) settle(i int) { w.may[i] = w.may[i][len(w.may[i])-1:] }

// learn reads what a trim has left: the previous content, or zeroes.
func (w *writer) learn(ctx context.Context, c *nbd.Client, from, n int) error {
	p := make([]byte, n*sectorBytes)
	if err := c.ReadAt(ctx, p, (w.first+int64(from))*sectorBytes); err != nil {
		return err
	}
	for i := range n {
		tag := w.tag(from+i, p[i*sectorBytes:(i+1)*sectorBytes])
		if may := w.may[from+i]; tag != may[len(may)-1] && tag != 0 {
			verdict.Errorf(w.t, "sector %d holds %d after a trim, and %d before", w.first+int64(from+i), tag, may[len(may)-1])
		}
		w.expect(from+i, 1, tag)
	}
	return nil
}

// tag returns the tag of a sector, and fails if the sector is torn.
func (w *writer) tag(i int, p []byte) uint64 {
	tag := binary.LittleEndian.Uint64(p)
	if !bytes.Equal(p, tagged(tag)) {
		verdict.Errorf(w.t, "sector %d is torn", w.first+int64(i))
	}
	return tag
}

// check compares the disk after a crash with what it may hold, and continues from there.
func (w *writer) check(disk []byte) {
	for i := range w.may {
		at := (w.first + int64(i)) * sectorBytes
		tag := w.tag(i, disk[at:at+sectorBytes])
		if !slices.Contains(w.may[i], tag) {
			verdict.Errorf(w.t, "sector %d holds %#x, and may hold %#x", w.first+int64(i), tag, w.may[i])
		}
		w.may[i] = []uint64{tag}
	}
}

// TestServe_isKilled kills the server again and again while clients write. What they had flushed is there, and no sector
// is torn.
func TestServe_isKilled(t *testing.T) {
	t.Parallel()
	const workers, each, rounds = 4, 5000, 8 // 10 MB in parts that begin within clusters
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	disk := make(memory, workers*each*sectorBytes+100) // and a last part that is not a whole sector
	writers := make([]*writer, workers)
	for n := range writers {
		w := &writer{t: t, random: rand.New(rand.NewPCG(seed, uint64(n)+1)), first: int64(n) * each, next: uint64(n+1) << 32}
		for i := range each {
			w.may = append(w.may, []uint64{uint64(i/1000) % 2 * w.next})
			copy(disk[(w.first+int64(i))*sectorBytes:], tagged(w.may[i][0]))
		}
		writers[n] = w
	}
	copy(disk[len(disk)-100:], bytes.Repeat([]byte("end."), 25))
	k := keep(t, repository.DiskSource{Bytes: int64(len(disk)), Reader: disk})
	for round := range rounds {
		s := k.serve(t, "--overlay", "o")
		got := wholeDisk(t, s, len(disk))
		for _, w := range writers {
			w.check(got)
		}
		if !bytes.Equal(got[len(got)-100:], disk[len(disk)-100:]) {
			verdict.Errorf(t, "the end differs")
		}
		if t.Failed() {
			t.Fatalf("after %d kills", round)
		}
		killWhile(t, s, writers, 30+random.IntN(300))
		if _, err := os.Lstat(s.address); err != nil { // the next server replaces the socket that the killed one has left
			t.Fatal(err)
		}
	}
	flushes := 0
	for _, w := range writers {
		flushes += w.flushes
	}
	if flushes < rounds {
		t.Errorf("only %d flushes", flushes)
	}
	s := k.serve(t)
	if !bytes.Equal(wholeDisk(t, s, len(disk)), disk) {
		verdict.Errorf(t, "the restore point has changed")
	}
	if err := s.end(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
}

// killWhile lets writers do that many steps in all, and kills the server while they go on.
func killWhile(t *testing.T, s *diskServer, writers []*writer, steps int) {
	t.Helper()
	var all sync.WaitGroup
	done := make(chan struct{}, steps)
	for _, w := range writers {
		c := s.dial(t, 2)
		all.Go(func() {
			for w.step(t.Context(), c) == nil {
				select {
				case done <- struct{}{}:
				default:
				}
			}
		})
	}
	for range steps {
		<-done
	}
	if err := s.end(syscall.SIGKILL); err == nil {
		t.Error("it ended by itself")
	}
	all.Wait()
}

// wholeDisk returns everything that a server has.
func wholeDisk(t *testing.T, s *diskServer, size int) []byte {
	t.Helper()
	c := s.dial(t, 4)
	got := make([]byte, size)
	if err := c.ReadAt(t.Context(), got, 0); err != nil {
		t.Fatal(err)
	}
	if err := c.Disconnect(t.Context()); err != nil {
		t.Error(err)
	}
	return got
}

// TestServe_endsInOrder: a signal ends a server with idle and busy clients. The server answers the requests that it has
// received, and keeps what was written.
func TestServe_endsInOrder(t *testing.T) {
	t.Parallel()
	disk := memory(random(3<<20+77, "disk of this test"))
	k := keep(t, repository.DiskSource{Bytes: int64(len(disk)), Reader: disk})
	for _, signal := range []os.Signal{syscall.SIGTERM, syscall.SIGINT} {
		s := k.serve(t, "--overlay", "o")
		idle, busy := s.dial(t, 4), s.dial(t, 2)
		written := random(1<<20, signal.String())
		if err := idle.WriteAt(t.Context(), written, 77_777, 0); err != nil { // and no flush
			t.Fatal(err)
		}
		copy(disk[77_777:], written)
		reads, ended := make(chan struct{}, 1), make(chan error)
		go func() {
			for {
				p := make([]byte, len(disk))
				if err := busy.ReadAt(t.Context(), p, 0); err != nil {
					ended <- err
					return
				}
				if !bytes.Equal(p, disk) {
					verdict.Errorf(t, "it reads something else")
				}
				select {
				case reads <- struct{}{}:
				default:
				}
			}
		}()
		<-reads
		if err := s.end(signal); err != nil {
			t.Errorf("%v: %v", signal, err)
		}
		var answer *nbd.Error
		if err := <-ended; errors.As(err, &answer) {
			t.Errorf("%v: a read was answered with %v", signal, err)
		}
		if _, err := os.Stat(s.address); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%v: the socket: %v", signal, err)
		}
		again := k.serve(t, "--overlay", "o")
		if !bytes.Equal(wholeDisk(t, again, len(disk)), disk) {
			verdict.Errorf(t, "%v: something that was written is gone", signal)
		}
		if err := again.end(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
	}
}

// TestServe_losesClients: clients that disappear at any moment, or are killed, do not affect the others.
func TestServe_losesClients(t *testing.T) {
	t.Parallel()
	disk := memory(random(12<<20, "disk of clients"))
	k := keep(t, repository.DiskSource{Bytes: int64(len(disk)), Reader: disk})
	s := k.serve(t, "--overlay", "o", "--cache-size", "1Mi")
	var all sync.WaitGroup
	for n := range 6 {
		all.Go(func() {
			for i := range 10 {
				c := s.dial(t, 1+n%3)
				p := make([]byte, 8<<20)
				failed := make(chan struct{})
				go func() {
					defer close(failed)
					var err error
					for err == nil {
						if err = c.ReadAt(t.Context(), p, int64(i)<<10); err == nil && n%2 == 0 {
							err = c.WriteAt(t.Context(), p, int64(i)<<10, 0) // the same bytes
						}
					}
				}()
				time.Sleep(time.Duration(i*n) * time.Millisecond)
				_ = c.Close() // without a goodbye
				<-failed
			}
		})
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(50*n)*time.Millisecond)
			defer cancel()
			_ = exec.CommandContext(ctx, "nbdcopy", s.uri(), filepath.Join(k.dir, "killed"+strconv.Itoa(n))).Run() // killed
		})
	}
	for range 3 {
		if !bytes.Equal(wholeDisk(t, s, len(disk)), disk) {
			verdict.Errorf(t, "it reads something else")
		}
	}
	all.Wait()
	if !bytes.Equal(wholeDisk(t, s, len(disk)), disk) {
		verdict.Errorf(t, "it reads something else afterwards")
	}
	if err := s.end(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
}
