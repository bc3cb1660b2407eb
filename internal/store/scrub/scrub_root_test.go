//go:build root

package scrub

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/disk/disktest"
	"github.com/varvebackup/varve/internal/store/diskset"
	"github.com/varvebackup/varve/internal/store/names"
	"github.com/varvebackup/varve/internal/store/peer"
	"github.com/varvebackup/varve/internal/store/reflink"
	"github.com/varvebackup/varve/test/loop"
	"github.com/varvebackup/varve/test/wait"
)

// bench is a disk whose scrub a test takes through its turns.
type bench struct {
	t       *testing.T
	fs      *loop.FileSystem
	set     *diskset.Set
	files   *reflink.Disk
	clock   *clocktesting.FakeClock
	scrub   *Scrubber
	worker  *worker
	damaged []string
	repairs []string
	// fetch returns a piece of another copy; nil: there is none.
	fetch func(piece int, p []byte) error
	// others are the other copies if fetch is nil.
	others Others
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{t: t, fs: loop.NewFileSystem(t, "xfs"), clock: clocktesting.NewFakeClock(time.Now())}
	if err := reflink.Format(b.fs.Dir, "disk-1"); err != nil {
		t.Fatal(err)
	}
	b.open()
	t.Cleanup(func() { _ = b.files.Close() }) // which fails if the file system was shut down
	return b
}

// open opens the disk and its scrub as a new process does.
func (b *bench) open() {
	b.t.Helper()
	files, err := reflink.Open(b.t.Context(), b.fs.Dir, reflink.Options{})
	if err != nil {
		b.t.Fatal(err)
	}
	b.files, b.set = files, &diskset.Set{}
	b.set.Put(diskset.Disk{Disk: files, Name: "d", UUID: "disk-1", Path: b.fs.Dir})
	b.scrub = New(Options{
		Disks: b.set, Copies: b, BytesPerSecond: 20 << 20, Interval: time.Hour, Clock: b.clock,
		Logger: slog.New(slog.DiscardHandler),
	})
	b.worker = b.scrub.newWorker("disk-1")
	b.scrub.workers["disk-1"] = b.worker
}

// step takes a step, and returns how long to wait after it.
func (b *bench) step() time.Duration {
	b.t.Helper()
	pause, open := b.worker.takeStep(b.t.Context())
	if !open {
		b.t.Fatal("the disk is not open")
	}
	return pause
}

// restart ends the process of the store.
func (b *bench) restart() {
	b.t.Helper()
	if err := b.files.Close(); err != nil {
		b.t.Fatal(err)
	}
	b.open()
}

func (b *bench) NoteDamage(ctx context.Context, c peer.Copy, why string) {
	b.damaged = append(b.damaged, c.Image+": "+why)
	if err := b.files.MarkDamaged(ctx, names.Image(c.Image, c.UUID), disk.UID(c.UUID), why); err != nil {
		b.t.Error(err)
	}
}

func (b *bench) CanRepair(context.Context, peer.Copy) (wanted bool, others Others) {
	if b.fetch == nil {
		return true, b.others
	}
	return true, ReadyOthers
}

func (b *bench) FetchPiece(_ context.Context, _ peer.Copy, piece int, p []byte) error {
	if b.fetch != nil {
		return b.fetch(piece, p)
	}
	return errclass.Errorf(errclass.Transient, "nobody has it")
}

func (b *bench) NoteRepair(_ context.Context, c peer.Copy, pieces int, err error) {
	b.repairs = append(b.repairs, fmt.Sprintf("%s: %d, %t", c.Image, pieces, err == nil))
}

func (b *bench) image(name, uuid string, data []byte) {
	(disktest.Disk{Disk: b.files, TB: b.t}).NewImage(names.Image(name, uuid), disk.UID(uuid), data)
}

// flip flips a bit of an object where the file system has it.
func (b *bench) flip(name disk.Name, offset int64) {
	b.t.Helper()
	disktest.Disk{Disk: b.files, TB: b.t}.FlipBit(b.fs.Device, name, offset)
}

// pass takes turns until a pass ends, and returns how long it paused for what it read, in MiB.
func (b *bench) pass() (mebibytes int) {
	b.t.Helper()
	before, _ := b.scrub.Status("disk-1")
	var paused time.Duration
	for range 1000 {
		pause := b.step()
		if pause != lookInterval {
			paused += pause
		}
		b.clock.Step(pause)
		if now, ok := b.scrub.Status("disk-1"); ok && now.LastEnded.After(before.LastEnded) {
			return int(paused / (50 * time.Millisecond))
		}
	}
	b.t.Fatal("no pass ends")
	return 0
}

// A pass reads every image once, without holes, and the next one begins when its time has come.
func TestScrub_readsEveryImage(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	withHole := disktest.Noise(1, 3<<20)
	clear(withHole[1<<20 : 2<<20])
	b.image("debian.13", "b", withHole)
	b.image("small", "a", disktest.Noise(2, 5))
	b.image("odd", "c", disktest.Noise(3, 1<<20+4097))
	if got := b.pass(); got != 4 { // 2 of the first, and 1 MiB and a little of the others
		t.Errorf("it read %d MiB", got)
	}
	ended, _ := b.scrub.Status("disk-1")
	if pause := b.step(); pause != lookInterval || ended.GoesOn {
		t.Errorf("it goes on at once: %s, %+v", pause, ended)
	}
	b.clock.Step(time.Hour)
	if got := b.pass(); got < 3 {
		t.Errorf("the next pass read %d MiB", got)
	}
	if len(b.damaged) > 0 {
		t.Error(b.damaged)
	}
}

// A store that restarts again and again comes to the end all the same, and reads little twice.
func TestScrub_goesOnAfterRestarts(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.image("large", "a", disktest.Noise(1, 40<<20))
	turns := 0
	for range 100 {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); b.worker.run(ctx) }()
		for range 3 {
			wait.Until(t, time.Minute, "the pause after a piece", b.clock.HasWaiters)
			b.clock.Step(lookInterval)
			turns++
		}
		cancel()
		<-ended
		status, _ := b.scrub.Status("disk-1")
		b.restart()
		if !status.LastEnded.IsZero() {
			if turns > 70 {
				t.Errorf("40 MiB took %d turns", turns)
			}
			return
		}
	}
	t.Fatal("no pass ended")
}

// A piece that is wrong marks its copy, and the others are read on. A disk that does not answer marks nothing.
func TestScrub_marksWhatIsWrong(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	data := disktest.Noise(4, 3<<20)
	b.image("bad", "a", data)
	b.image("good", "b", data)
	b.flip(names.Image("bad", "a"), 1<<20+5)
	b.pass()
	if want := []string{"bad: MiB 1 is not what was sealed"}; !slices.Equal(b.damaged, want) {
		t.Errorf("%v", b.damaged)
	}

	b.clock.Step(time.Hour)
	b.fs.ShutDown(t)
	for range 3 {
		b.clock.Step(b.step())
	}
	if len(b.damaged) != 1 {
		t.Errorf("a disk that does not answer: %v", b.damaged)
	}
}

// Which volumes share what is wrong is on the disk before the repair, after which nothing would show it any more.
func TestScrub_notesVolumesBeforeTheRepair(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	data := disktest.Noise(4, 2<<20)
	b.image("bad", "a", data)
	(disktest.Disk{Disk: b.files, TB: t}).NewHead(names.Head("pvc-1"), "pvc-1", names.Image("bad", "a"), 2<<20)
	b.flip(names.Image("bad", "a"), 1<<20+5)
	fetched := 0
	b.fetch = func(piece int, p []byte) error {
		fetched++
		if got, want := b.noted(), []string{"volume/pvc-1 1048576+1048576"}; !slices.Equal(got, want) {
			t.Errorf("before the repair the disk has %q", got)
		}
		copy(p, data[piece<<20:])
		return nil
	}
	b.pass()
	status, _ := b.scrub.Status("disk-1")
	if status.BadPieces != 1 || status.RepairedPieces != 1 {
		t.Errorf("%d pieces were wrong, and %d were repaired", status.BadPieces, status.RepairedPieces)
	}
	if got, want := b.noted(), []string{"volume/pvc-1 1048576+4096"}; !slices.Equal(got, want) || fetched != 1 {
		t.Errorf("after the repair the disk has %q; %d pieces were fetched", got, fetched)
	}
	b.restart()
	b.pass()
	if status, _ := b.scrub.Status("disk-1"); len(status.Shares) != 1 || len(b.damaged) != 1 {
		t.Errorf("after a restart: %+v, %q", status, b.damaged)
	}
}

// The status counts what was wrong once, also if the repair takes several attempts, and has when each copy was read.
func TestScrub_countsWhatItFinds(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	data := disktest.Noise(4, 3<<20)
	b.image("bad", "a", data)
	b.image("good", "b", data)
	b.flip(names.Image("bad", "a"), 5)
	b.flip(names.Image("bad", "a"), 2<<20+5)
	seen := b.clock.Now()
	b.pass() // with one attempt to repair it
	status, _ := b.scrub.Status("disk-1")
	if status.BadPieces != 2 || status.RepairedPieces != 0 {
		t.Errorf("%d pieces were wrong, and %d were repaired", status.BadPieces, status.RepairedPieces)
	}
	if got := status.LastRead; len(got) != 2 || !got["a"].Equal(seen) || !got["b"].After(seen) {
		t.Errorf("the copies were read at %v, and first seen at %s", got, seen)
	}
	b.fetch = func(piece int, p []byte) error {
		copy(p, data[piece<<20:])
		return nil
	}
	b.clock.Step(repairInterval)
	b.clock.Step(b.step())
	b.restart() // what was read stays known
	b.clock.Step(b.step())
	b.clock.Step(time.Hour)
	b.pass()
	status, _ = b.scrub.Status("disk-1")
	if !status.LastRead["a"].After(seen.Add(time.Hour)) || len(status.LastRead) != 2 {
		t.Errorf("after the next pass: %v", status.LastRead)
	}
	if want := []string{"bad: 0, false", "bad: 2, true"}; !slices.Equal(b.repairs, want) {
		t.Errorf("it says of repairs: %q", b.repairs)
	}
	if err := b.files.Delete(t.Context(), names.Image("bad", "a")); err != nil {
		t.Fatal(err)
	}
	b.clock.Step(b.step())
	if status, _ = b.scrub.Status("disk-1"); len(status.LastRead) != 1 {
		t.Errorf("after the copy was deleted: %v", status.LastRead)
	}
}

// A copy that somebody asks for is read at once and once, also if the store was restarted.
func TestScrub_checksACopyAtOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	data := disktest.Noise(4, 3<<20)
	b.image("first", "a", data)
	b.image("asked", "b", data)
	b.pass()
	read := func() (mebibytes int) {
		for pause := b.step(); pause != lookInterval; pause = b.step() {
			mebibytes += int(pause / (50 * time.Millisecond))
		}
		return mebibytes
	}
	b.scrub.RequestCheck("other", "b", "one") // it has not looked at that disk
	b.scrub.RequestCheck("disk-1", "b", "one")
	b.clock.Step(time.Minute)
	if got := read(); got != 3 {
		t.Errorf("it read %d MiB", got)
	}
	if status, _ := b.scrub.Status("disk-1"); !status.LastRead["b"].Equal(b.clock.Now()) {
		t.Errorf("the copy was read at %v, and it is %s", status.LastRead, b.clock.Now())
	}
	b.scrub.RequestCheck("disk-1", "b", "one")
	again := read()
	b.restart()
	b.scrub.RequestCheck("disk-1", "b", "one")
	if after := read(); again+after != 0 {
		t.Errorf("it read %d MiB again, and %d after a restart", again, after)
	}
	b.flip(names.Image("asked", "b"), 1<<20+5)
	b.scrub.RequestCheck("disk-1", "b", "two")
	read()
	if want := []string{"asked: MiB 1 is not what was sealed"}; !slices.Equal(b.damaged, want) {
		t.Errorf("%v", b.damaged)
	}
}

// A copy that only damaged ones could repair is read again after pauses that double, and soon if another one is ready.
func TestScrub_repairPauses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		others Others
		want   int
	}{"no others": {NoOthers, 1}, "damaged others": {DamagedOthers, 10}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			data := disktest.Noise(4, 1<<20)
			b.image("bad", "a", data)
			b.flip(names.Image("bad", "a"), 5)
			b.others = c.others
			b.pass()
			for range 3 * 24 * 6 {
				b.clock.Step(repairInterval)
				b.step()
			}
			if len(b.repairs) != c.want {
				t.Errorf("%d attempts in three days: %q", len(b.repairs), b.repairs)
			}
			b.fetch = func(piece int, p []byte) error { copy(p, data[piece<<20:]); return nil }
			b.clock.Step(repairInterval)
			b.step()
			if got := b.repairs[len(b.repairs)-1]; got != "bad: 1, true" {
				t.Errorf("when another one is ready: %s", got)
			}
		})
	}
}

// silentDisk does not answer when an object is opened.
type silentDisk struct{ disk.Disk }

func (silentDisk) Open(context.Context, disk.Name) (disk.Lease, error) {
	return nil, errclass.Errorf(errclass.Transient, "the disk has not answered")
}

// A piece that could not be read because the disk is silent is read later: no pass ends without it.
func TestScrub_waitsForASilentDisk(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.image("i", "u", disktest.Noise(1, 1<<20))
	b.set.Put(diskset.Disk{Disk: silentDisk{b.files}, Name: "d", UUID: "disk-1", Path: b.fs.Dir})
	for range 3 * troubleInterval / lookInterval {
		b.clock.Step(b.step())
	}
	if status, _ := b.scrub.Status("disk-1"); !status.LastEnded.IsZero() || status.Percent > 0 || len(b.damaged) > 0 {
		t.Errorf("%+v, %v", status, b.damaged)
	}
	b.set.Put(diskset.Disk{Disk: b.files, Name: "d", UUID: "disk-1", Path: b.fs.Dir})
	if got := b.pass(); got != 1 {
		t.Errorf("it read %d MiB", got)
	}
}

// A worker that hangs in its turn holds up the others for a moment only.
func TestScrub_goesOnBesideOneThatHangs(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	hangs := b.scrub.takeTurn(t.Context())
	for range 2 {
		ended := make(chan struct{})
		go func() { defer close(ended); b.scrub.takeTurn(t.Context())() }()
		wait.Until(t, time.Minute, "the next turn", func() bool {
			b.clock.Step(turnPatience)
			select {
			case <-ended:
				return true
			default:
				return false
			}
		})
	}
	if len(b.scrub.turn) != 0 {
		t.Error("nobody has the turn, and it is taken")
	}
	hangs() // much later
	b.scrub.takeTurn(t.Context())()
}

// An image that is deleted in the middle of its turn is no error, and its lease is given back.
func TestScrub_imageGoesAway(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for i := range 3 {
		b.image(fmt.Sprint("i", i), fmt.Sprint("u", i), disktest.Noise(byte(i), 2<<20))
	}
	b.clock.Step(b.step())
	for i := range 2 {
		if err := b.files.Delete(t.Context(), names.Image(fmt.Sprint("i", i), fmt.Sprint("u", i))); err != nil {
			t.Fatal(err)
		}
	}
	if got := b.pass(); got != 2 || len(b.damaged) > 0 {
		t.Errorf("%d MiB, %s", got, strings.Join(b.damaged, ", "))
	}
	if err := b.files.CloseUnused(); err != nil {
		t.Error(err)
	}
	b.open()
}

// An image whose hashes cannot be read is damaged, and the others are read on.
func TestScrub_hashesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for i, uuid := range []string{"a", "b", "c"} {
		b.image(uuid, uuid, disktest.Noise(byte(i), 1<<20))
	}
	path := filepath.Join(b.fs.Dir, "images/b/hashes")
	if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o700)); err != nil { // to read it fails, as with EIO
		t.Fatal(err)
	}
	got := b.pass()
	if got != 2 || len(b.damaged) != 1 || !strings.HasPrefix(b.damaged[0], "b: its hashes cannot be read") {
		t.Errorf("it read %d MiB, and %q", got, b.damaged)
	}
}

// noted returns the names of the volumes that the scrub's state has.
func (b *bench) noted() (all []string) {
	b.t.Helper()
	st, err := readState(b.fs.Dir)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, x := range st.Shares {
		all = append(all, fmt.Sprintf("%s %d+%d", x.Object, x.Offset(), x.Bytes()))
	}
	slices.Sort(all)
	return all
}

// cloneHead makes a volume of another one, through a snapshot that stays or goes.
func (b *bench) cloneHead(from, name string, keep bool) {
	b.t.Helper()
	snapshot := disk.Name("snapshot/" + name)
	err := b.files.Snapshot(b.t.Context(), names.Head(from), snapshot, disk.Seal{
		UID: disk.UID("snapshot-" + name), Kind: disk.KindSnapshot,
	})
	if err == nil {
		err = b.files.Create(b.t.Context(), names.Head(name), disk.Source{
			UID: disk.UID(name), Volume: disk.UID(name), From: snapshot, Bytes: 2 << 20, Independent: true,
		})
	}
	if err == nil && !keep {
		err = b.files.Delete(b.t.Context(), snapshot)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// Volumes and snapshots that are made of one that shares what is wrong share it, too: they are named while the copy is
// repaired and after that, also if the one that was named before is deleted.
func TestScrub_namesClonesOfVolumes(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	data := disktest.Noise(4, 2<<20)
	b.image("bad", "a", data)
	helper := disktest.Disk{Disk: b.files, TB: t}
	helper.NewHead(names.Head("old"), "old", names.Image("bad", "a"), 2<<20)
	helper.NewHead(names.Head("other"), "other", "", 2<<20)
	b.flip(names.Image("bad", "a"), 1<<20+5)
	b.fetch = func(piece int, p []byte) error {
		copy(p, data[piece<<20:])
		b.cloneHead("old", "meanwhile", true)
		return nil
	}
	b.pass()
	const wrong = " 1048576+4096"
	want := []string{"snapshot/meanwhile" + wrong, "volume/meanwhile" + wrong, "volume/old" + wrong}
	if got := b.noted(); !slices.Equal(got, want) {
		t.Errorf("after the repair: %q", got)
	}
	b.cloneHead("old", "later", false)
	b.look()
	want = []string{"snapshot/meanwhile" + wrong, "volume/later" + wrong, "volume/meanwhile" + wrong, "volume/old" + wrong}
	if got := b.noted(); !slices.Equal(got, want) {
		t.Errorf("after another clone: %q", got)
	}
	for _, name := range []disk.Name{"snapshot/meanwhile", names.Head("meanwhile"), names.Head("old")} {
		if err := b.files.Delete(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	b.cloneHead("later", "last", false)
	if err := b.files.Delete(t.Context(), names.Head("later")); err != nil {
		t.Fatal(err)
	}
	b.restart()
	b.look()
	if got, want := b.noted(), []string{"volume/last" + wrong}; !slices.Equal(got, want) {
		t.Errorf("after the deletion of all that were noted: %q", got)
	}
	if err := b.files.Delete(t.Context(), names.Head("last")); err != nil {
		t.Fatal(err)
	}
	b.look()
	if got := b.noted(); len(got) > 0 {
		t.Errorf("at the end: %q", got)
	}
}

// releaseBlocks has the file system free the blocks of files that were deleted, which it does in the background.
func (b *bench) releaseBlocks() {
	b.t.Helper()
	const freeze, thaw = 0xc0045877, 0xc0045878 // FIFREEZE and FITHAW of <linux/fs.h>
	f, err := os.Open(b.fs.Dir)
	if err == nil {
		err = errors.Join(unix.IoctlSetInt(int(f.Fd()), freeze, 0), unix.IoctlSetInt(int(f.Fd()), thaw, 0), f.Close())
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// place returns where a volume has the block at an offset.
func (b *bench) place(volume string, offset int64) []disk.Placed {
	b.t.Helper()
	placed, err := b.files.Place(b.t.Context(), names.Head(volume), extent.Extent{Offset: offset, Length: blockBytes})
	if err != nil {
		b.t.Fatal(err)
	}
	return placed
}

// A volume leaves the list when it has overwritten what was wrong, also if the file system overwrites the block in its
// place, because nobody shares it any more. What it has not overwritten stays in the list.
func TestScrub_volumeOverwritesInPlace(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	data := disktest.Noise(4, 2<<20)
	b.image("bad", "a", data)
	helper := disktest.Disk{Disk: b.files, TB: t}
	helper.NewHead(names.Head("pvc-1"), "pvc-1", names.Image("bad", "a"), 2<<20)
	for _, at := range []int64{0, blockBytes, 2 * blockBytes} {
		b.flip(names.Image("bad", "a"), 1<<20+at+5)
	}
	b.fetch = func(piece int, p []byte) error { copy(p, data[piece<<20:]); return nil }
	b.pass()
	b.releaseBlocks()
	before := b.place("pvc-1", 1<<20+blockBytes)
	helper.Write(names.Head("pvc-1"), 1<<20+blockBytes, make([]byte, blockBytes))
	if after := b.place("pvc-1", 1<<20+blockBytes); !slices.Equal(before, after) {
		t.Fatalf("the block was at %v, and is at %v: this test shows nothing", before, after)
	}
	b.look()
	if got, want := b.noted(), []string{"volume/pvc-1 1048576+8192"}; !slices.Equal(got, want) {
		t.Errorf("after a part was overwritten: %q", got)
	}
	b.cloneHead("pvc-1", "clone", false)
	b.restart()
	b.look()
	want := []string{"volume/clone 1048576+8192", "volume/pvc-1 1048576+8192"}
	if got := b.noted(); !slices.Equal(got, want) {
		t.Errorf("after a clone was made: %q", got)
	}
	if err := b.files.Delete(t.Context(), names.Head("clone")); err != nil {
		t.Fatal(err)
	}
	b.releaseBlocks()
	disktest.Disk{Disk: b.files, TB: t}.Write(names.Head("pvc-1"), 1<<20, make([]byte, 3*blockBytes))
	b.look()
	if got := b.noted(); len(got) > 0 {
		t.Errorf("after all was overwritten: %q", got)
	}
}

// Volumes for which there is no room are noted as soon as there is, and then the status says that those are all.
func TestScrub_notesTheOthersWhenThereIsRoom(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	data := disktest.Noise(4, 2<<20)
	b.image("bad", "a", data)
	helper := disktest.Disk{Disk: b.files, TB: t}
	handles := []string{"pvc-1", "pvc-2", "pvc-3"}
	for _, handle := range handles {
		helper.NewHead(names.Head(handle), disk.UID(handle), names.Image("bad", "a"), 2<<20)
	}
	full := state{Format: stateVersion}
	for i := range maxShares - 1 {
		full.Shares = append(full.Shares, Share{
			ImageUUID: "other", Object: disk.Name(fmt.Sprint("volume/gone-", i)), Parts: []part{{0, 1, 1, ""}},
		})
	}
	b.flip(names.Image("bad", "a"), 1<<20+5)
	b.fetch = func(piece int, p []byte) error { copy(p, data[piece<<20:]); return nil }
	if err := writeState(b.fs.Dir, full); err != nil {
		t.Fatal(err)
	}
	b.worker.prunedAt = b.clock.Now() // so that those that are gone keep the room
	for range 4 {
		b.step()
	}
	if status, _ := b.scrub.Status("disk-1"); len(status.Shares) != maxShares || !status.Omitted {
		t.Errorf("after the repair %d are noted, others omitted: %t", len(status.Shares), status.Omitted)
	}
	b.restart()
	b.look()
	const wrong = " 1048576+4096"
	want := []string{"volume/pvc-1" + wrong, "volume/pvc-2" + wrong, "volume/pvc-3" + wrong}
	if status, _ := b.scrub.Status("disk-1"); !slices.Equal(b.noted(), want) || status.Omitted {
		t.Errorf("when there is room: %q, others omitted: %t", b.noted(), status.Omitted)
	}
}

// look has the scrub look at what it has noted.
func (b *bench) look() {
	b.t.Helper()
	b.clock.Step(lookInterval + time.Second) // the second for what it reads
	b.step()
}

// blindDisk does not say where the data of volumes is.
type blindDisk struct {
	disk.Disk

	err error
}

func (d blindDisk) Place(ctx context.Context, name disk.Name, within extent.Extent) ([]disk.Placed, error) {
	if _, isHead := names.IsHead(name); isHead {
		return nil, d.err
	}
	return d.Disk.Place(ctx, name, within)
}

// No copy is repaired before it is known which volumes share what is wrong. A volume is named if that cannot be found
// out for it.
func TestScrub_volumesThatCannotBePlaced(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err   error
		noted int
		state disk.State
	}{
		"a disk that is silent": {errclass.Errorf(errclass.Transient, "silent"), 0, disk.StateDamaged},
		"a file with an error":  {errors.New("input/output error"), 1, disk.StateReady},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			data := disktest.Noise(4, 2<<20)
			b.image("bad", "a", data)
			helper := disktest.Disk{Disk: b.files, TB: t}
			helper.NewHead(names.Head("pvc-1"), "pvc-1", names.Image("bad", "a"), 2<<20)
			b.flip(names.Image("bad", "a"), 1<<20+5)
			b.set.Put(diskset.Disk{Disk: blindDisk{b.files, c.err}, Name: "d", UUID: "disk-1", Path: b.fs.Dir})
			b.fetch = func(piece int, p []byte) error { copy(p, data[piece<<20:]); return nil }
			b.pass()
			state := helper.Find(names.Image("bad", "a")).State
			if got := b.noted(); len(got) != c.noted || state != c.state {
				t.Errorf("%s, %q", state, got)
			}
		})
	}
}

// A repair that finds somebody else at work is tried again soon, and counts as not tried until then.
func TestScrub_repairWaitsForAnotherOne(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	data := disktest.Noise(4, 1<<20)
	b.image("bad", "a", data)
	b.flip(names.Image("bad", "a"), 5)
	b.fetch = func(piece int, p []byte) error { copy(p, data[piece<<20:]); return nil }
	b.NoteDamage(t.Context(), peer.Copy{Image: "bad", UUID: "a"}, "a bit")
	begun, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan error)
	go func() { // which the guard of the disk has given up
		ended <- b.files.Repair(t.Context(), names.Image("bad", "a"), "a", func(context.Context, int, []byte, []byte) error {
			close(begun)
			<-goOn
			return errclass.Errorf(errclass.Transient, "canceled")
		})
	}()
	<-begun
	for range 3 {
		b.look()
		if !b.scrub.MayRepair("disk-1", "a") {
			t.Error("it counts as tried")
		}
	}
	close(goOn)
	<-ended
	b.look()
	if got := (disktest.Disk{Disk: b.files, TB: t}).Find(names.Image("bad", "a")).State; got != disk.StateReady {
		t.Error(got)
	}
}

// An image that is made of a volume with a wrong block has the hash of that, so no pass finds it: it is named. One that
// has no such block is not.
func TestScrub_namesImagesOfVolumes(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	data := disktest.Noise(4, 2<<20)
	b.image("bad", "a", data)
	b.image("good", "c", data)
	(disktest.Disk{Disk: b.files, TB: t}).NewHead(names.Head("pvc-1"), "pvc-1", names.Image("bad", "a"), 2<<20)
	b.flip(names.Image("bad", "a"), 1<<20+5)
	b.fetch = func(piece int, p []byte) error { copy(p, data[piece<<20:]); return nil }
	seal := func(uuid string) string {
		name := names.Image("exported", uuid)
		err := b.files.Snapshot(t.Context(), names.Head("pvc-1"), name, disk.Seal{UID: disk.UID(uuid), Kind: disk.KindImage})
		if err != nil {
			t.Fatal(err)
		}
		return string(name) + " 1048576+4096"
	}
	want := []string{seal("d")}
	b.pass()
	want = append(want, seal("e"), "volume/pvc-1 1048576+4096")
	b.look()
	if got := b.noted(); !slices.Equal(got, want) {
		t.Errorf("%q, not %q", got, want)
	}
}
