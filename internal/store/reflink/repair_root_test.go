//go:build root

package reflink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/disk/disktest"
	"github.com/varvebackup/varve/test/verdict"
)

const repairBytes = 3<<20 + 4097

// prepareDamaged makes an image with a clone, and flips a bit at each offset of the image.
func prepareDamaged(t *testing.T, d *Disk, data []byte, offsets ...int64) {
	t.Helper()
	helper := disktest.Disk{Disk: d, TB: t}
	helper.NewImage("image", "i", data)
	helper.NewHead("clone", "c", "image", repairBytes)
	path := filepath.Join(d.dir, imagesDir, "i", "data")
	err := setImmutable(path, false)
	f, errOpen := os.OpenFile(path, os.O_RDWR, 0)
	if err = errors.Join(err, errOpen); err != nil {
		t.Fatal(err)
	}
	for _, at := range offsets {
		_, errWrite := f.WriteAt([]byte{data[at] ^ 1}, at)
		err = errors.Join(err, errWrite)
	}
	err = errors.Join(err, f.Sync(), f.Close(), setImmutable(path, true))
	if err = errors.Join(err, d.MarkDamaged(t.Context(), "image", "i", "a bit")); err != nil {
		t.Fatal(err)
	}
}

// fetchFrom returns pieces of data, and notes which.
func fetchFrom(data []byte, asked *[]int) disk.FetchPiece {
	return func(_ context.Context, piece int, _, want []byte) error {
		*asked = append(*asked, piece)
		copy(want, data[piece*pieceBytes:])
		return nil
	}
}

// After a crash at any step of a repair the image is damaged as before, or good. Its clone has what it had.
func TestRepair_crashes(t *testing.T) {
	t.Parallel()
	data := disktest.Noise(5, repairBytes)
	for _, how := range []uint32{shutdownNoFlushLog, shutdownFlushLog} {
		t.Run(fmt.Sprint("log flushed ", how == shutdownFlushLog), func(t *testing.T) {
			t.Parallel()
			s := newFileSystem(t, "xfs")
			seen := map[disk.State]int{}
			for step, crashed := 0, true; crashed; step++ {
				d := s.openDisk(t, Options{})
				prepareDamaged(t, d, data, 17, 3<<20+5)
				left := step
				crashed = false
				d.reached = func(string) error {
					if left--; left >= 0 {
						return nil
					}
					if crashed {
						return errCrashed
					}
					crashed = true
					return errors.Join(errCrashed, s.crash(how))
				}
				var asked []int
				err := d.Repair(t.Context(), "image", "i", fetchFrom(data, &asked))
				if (err == nil) == crashed {
					t.Fatalf("step %d: %v", step, err)
				}
				_ = d.Close() // which fails if the file system is gone
				s.unmount(t)
				s.mount(t)
				d = s.openDisk(t, Options{})
				helper := disktest.Disk{Disk: d, TB: t}
				wantNothingElse(t, d)
				state := helper.Find("image").State
				if seen[state]++; state == disk.StateDamaged {
					if err := d.Repair(t.Context(), "image", "i", fetchFrom(data, &asked)); err != nil {
						t.Fatal(err)
					}
				}
				if got := helper.Find("image"); got.State != disk.StateReady || got.Checksum != disktest.Checksum(data) {
					t.Errorf("step %d: %+v", step, got)
				}
				for _, name := range []disk.Name{"image", "clone"} {
					if !bytes.Equal(helper.Read(name), data) {
						verdict.Errorf(t, "step %d: %s has other bytes", step, name)
					}
				}
				wantNothingElse(t, d)
				if err := errors.Join(d.Delete(t.Context(), "clone"), d.Delete(t.Context(), "image"), d.Close()); err != nil {
					t.Fatal(err)
				}
			}
			if seen[disk.StateDamaged] == 0 || seen[disk.StateReady] < 2 {
				t.Errorf("after crashes: %v", seen)
			}
		})
	}
}

// What cannot be repaired stays as it is. Every wrong piece is asked for, and nothing else is.
func TestRepair_fails(t *testing.T) {
	t.Parallel()
	s := newFileSystem(t, "xfs")
	d := s.openDisk(t, Options{})
	data := disktest.Noise(6, repairBytes)
	prepareDamaged(t, d, data, 17, 2<<20)
	for piece, class := range map[int]error{0: errclass.Corrupt, 1: nil, 2: errclass.Corrupt} {
		if err := d.ReadPiece(t.Context(), "image", "i", piece, make([]byte, pieceBytes)); !errors.Is(err, class) {
			t.Errorf("MiB %d: %v", piece, err)
		}
	}
	var asked []int
	none := func(_ context.Context, piece int, has, _ []byte) error {
		asked = append(asked, piece)
		if bytes.Equal(has, data[piece*pieceBytes:(piece+1)*pieceBytes]) {
			t.Errorf("piece %d is right", piece)
		}
		return errclass.Errorf(errclass.Transient, "nobody has it")
	}
	wrong := func(_ context.Context, _ int, has, want []byte) error { copy(want, has); return nil }
	inUse := func(ctx context.Context, _ int, _, _ []byte) error { return d.Delete(ctx, "image") }
	for text, c := range map[string]struct {
		name  disk.Name
		uid   disk.UID
		fetch disk.FetchPiece
		class error
	}{
		"nobody has it":       {"image", "i", none, errclass.Transient},
		"not what was sealed": {"image", "i", wrong, errclass.Corrupt},
		"in use":              {"image", "i", inUse, errclass.Conflict},
		"not j":               {"image", "j", wrong, errclass.NotFound},
		"not an image":        {"clone", "c", wrong, errclass.Invalid},
		"has no":              {"another", "i", wrong, errclass.NotFound},
	} {
		err := d.Repair(t.Context(), c.name, c.uid, c.fetch)
		if !errors.Is(err, c.class) || !bytes.Contains([]byte(err.Error()), []byte(text)) {
			t.Errorf("%s: %v", text, err)
		}
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.Repair(canceled, "image", "i", none); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if diff := cmp.Diff([]int{0, 2}, asked); diff != "" {
		t.Error(diff)
	}
	if got := (disktest.Disk{Disk: d, TB: t}).Find("image").State; got != disk.StateDamaged {
		t.Error(got)
	}
	wantNothingElse(t, d)
}

// A repair takes the space of what was wrong: the rest is shared with the clones as before.
func TestRepair_keepsWhatIsShared(t *testing.T) {
	t.Parallel()
	s := newFileSystem(t, "xfs")
	d := s.openDisk(t, Options{})
	data := disktest.Noise(7, repairBytes)
	prepareDamaged(t, d, data, 1<<20+4096+9)
	var asked []int
	if err := d.Repair(t.Context(), "image", "i", fetchFrom(data, &asked)); err != nil {
		t.Fatal(err)
	}
	var differs []extent.Extent
	for e, err := range d.Changed(t.Context(), "clone", "image") {
		if err != nil {
			t.Fatal(err)
		}
		if e.Offset < 3<<20 { // XFS gives each file its own last block if that is not a whole one
			differs = append(differs, e)
		}
	}
	if diff := cmp.Diff([]extent.Extent{{Offset: 1<<20 + 4096, Length: 4096}}, differs); diff != "" {
		t.Error(diff)
	}
	// An image that was marked, and is right, is ready again.
	err := d.MarkDamaged(t.Context(), "image", "i", "a bit")
	err = errors.Join(err, d.Repair(t.Context(), "image", "i", fetchFrom(data, &asked)))
	got := (disktest.Disk{Disk: d, TB: t}).Find("image").State
	if err != nil || got != disk.StateReady || len(asked) != 1 {
		t.Errorf("%s, %v, %v", got, asked, err)
	}
}

// A repair that was given up, and goes on, is alone: another one would take its files away, and the first would seal
// what is left.
func TestRepair_isAlone(t *testing.T) {
	t.Parallel()
	s := newFileSystem(t, "xfs")
	d := s.openDisk(t, Options{})
	data := disktest.Noise(6, repairBytes)
	prepareDamaged(t, d, data, 17, 2<<20)
	helper := disktest.Disk{Disk: d, TB: t}
	var asked []int
	begun, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan error)
	go func() {
		ended <- d.Repair(t.Context(), "image", "i", func(_ context.Context, piece int, _, want []byte) error {
			if piece == 2 {
				close(begun)
				<-goOn
			}
			copy(want, data[piece*pieceBytes:])
			return nil
		})
	}()
	<-begun
	if err := d.Repair(t.Context(), "image", "i", fetchFrom(data, &asked)); !errors.Is(err, disk.ErrBusy) {
		t.Errorf("another repair: %v", err)
	}
	if got := helper.Find("image").State; got != disk.StateDamaged || len(asked) > 0 {
		t.Errorf("it is %s while its repair goes on, and %v were fetched", got, asked)
	}
	close(goOn)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if got := helper.Find("image").State; got != disk.StateReady || !bytes.Equal(helper.Read("image"), data) {
		verdict.Errorf(t, "it is %s and has wrong bytes", got)
	}
	if err := d.Repair(t.Context(), "image", "i", fetchFrom(data, &asked)); err != nil {
		t.Errorf("a repair after that: %v", err)
	}
	wantNothingElse(t, d)
}

// A clone that is being made when its image is found to be damaged is there before the repair, so that fetch can see
// what it shares.
func TestRepair_waitsForClones(t *testing.T) {
	t.Parallel()
	s := newFileSystem(t, "xfs")
	d := s.openDisk(t, Options{})
	data := disktest.Noise(8, repairBytes)
	(disktest.Disk{Disk: d, TB: t}).NewImage("image", "i", data)
	cloned, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan error)
	d.reached = func(step string) error {
		if step == "clone" {
			close(cloned)
			<-goOn
		}
		return nil
	}
	go func() {
		ended <- d.Create(t.Context(), "clone", disk.Source{UID: "c", Volume: "v", From: "image", Bytes: repairBytes})
	}()
	<-cloned
	var asked []int
	err := d.MarkDamaged(t.Context(), "image", "i", "a bit")
	if busy := d.Repair(t.Context(), "image", "i", fetchFrom(data, &asked)); err != nil || !errors.Is(busy, disk.ErrBusy) {
		t.Errorf("%v, %v", err, busy)
	}
	close(goOn)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	d.reached = nil
	if err := d.Repair(t.Context(), "image", "i", fetchFrom(data, &asked)); err != nil {
		t.Error(err)
	}
	wantNothingElse(t, d)
}
