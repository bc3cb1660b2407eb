package scrub

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/diskset"
	"github.com/varvebackup/varve/internal/store/names"
	"github.com/varvebackup/varve/internal/store/peer"
)

const (
	// lookInterval is how often the disks are looked at if nothing is to be read.
	lookInterval = 30 * time.Second
	// saveInterval is how often the state of a disk is written. A restart reads again what was read since then.
	saveInterval = time.Minute
	// repairInterval is between two attempts to repair a copy, and troubleInterval how long a disk that does not answer is
	// left alone.
	repairInterval = 10 * time.Minute
	// longestRepairInterval bounds the pauses that double while no other copy is ready: each attempt reads all of the
	// copy, and most likely finds nothing new.
	longestRepairInterval = 24 * time.Hour
	troubleInterval       = 5 * time.Minute
	// turnPatience is how long a worker waits for another one to end its turn.
	turnPatience = 30 * time.Second
)

// Copies are the copies of images in the cluster.
type Copies interface {
	// NoteDamage marks a copy as damaged, and reports it.
	NoteDamage(ctx context.Context, c peer.Copy, why string)
	// CanRepair says whether a copy is wanted where it is, and which others may have its bytes.
	CanRepair(ctx context.Context, c peer.Copy) (wanted bool, others Others)
	// FetchPiece reads a piece of an image from another copy than that one.
	FetchPiece(ctx context.Context, c peer.Copy, piece int, p []byte) error
	// NoteRepair is told how an attempt to repair a copy ended: how many pieces it replaced, or why it failed.
	NoteRepair(ctx context.Context, c peer.Copy, pieces int, err error)
}

// Others are the other copies of an image.
type Others int

// Which other copies there are.
const (
	NoOthers      Others = iota
	DamagedOthers        // none that is ready
	ReadyOthers
)

// Options say how a node's disks are read.
type Options struct {
	Disks  *diskset.Set
	Copies Copies
	// BytesPerSecond bounds how fast images are read, and Interval is from the beginning of a pass to that of the next. A
	// disk that cannot be read in that time takes longer.
	BytesPerSecond int64
	Interval       time.Duration
	Clock          clock.WithTicker
	Logger         *slog.Logger
	// Changed is called when what Status returns has changed in more than its progress.
	Changed func()
}

// Scrubber reads the images of a node's disks.
type Scrubber struct {
	Options

	wake chan struct{}

	mu      sync.Mutex
	workers map[disk.UID]*worker
	// turn is held by the worker that reads. One that hangs keeps it, and the others go on with another one.
	turn chan struct{}
}

// Status is what is known of a disk.
type Status struct {
	// LastEnded is when the last whole pass ended; zero if there was none.
	LastEnded time.Time
	// GoesOn says that a pass goes on, and Percent how far it is.
	GoesOn  bool
	Percent int
	// Shares are the volumes that have wrong blocks of a copy. Omitted says that there are more than can be noted.
	Shares  []Share
	Omitted bool
	// LastRead says when each copy on the disk was last read as a whole, or first seen if it was not read yet.
	LastRead map[disk.UID]time.Time
	// BadPieces is how many pieces were found to be wrong, and RepairedPieces how many were replaced, both since the disk
	// was opened.
	BadPieces, RepairedPieces int64
}

// New returns a Scrubber that has read nothing yet.
func New(o Options) *Scrubber {
	if o.Changed == nil {
		o.Changed = func() {}
	}
	return &Scrubber{
		Options: o, wake: make(chan struct{}, 1), workers: map[disk.UID]*worker{}, turn: make(chan struct{}, 1),
	}
}

// WakeUp makes the Scrubber look for damaged copies soon.
func (s *Scrubber) WakeUp() { signal(s.wake) }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Status returns what is known of a disk. ok is false if nobody has looked at the disk yet.
func (s *Scrubber) Status(uuid disk.UID) (status Status, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.workers[uuid]
	if w == nil || !w.loaded {
		return Status{}, false
	}
	return Status{
		LastEnded: w.state.Ended, GoesOn: w.state.GoesOn, Percent: w.percent, Shares: slices.Clone(w.state.Shares),
		Omitted: w.state.Omitted || len(w.state.Left) > 0, LastRead: w.state.listReads(), BadPieces: w.badPieces,
		RepairedPieces: w.repairedPieces,
	}, true
}

// MayRepair says whether a damaged copy may soon be good: its repair goes on, or was not tried yet.
func (s *Scrubber) MayRepair(uuid, image disk.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.workers[uuid]
	if w == nil {
		return true
	}
	_, tried := w.triedAt[image]
	return !tried || w.trying == image
}

// Run works until ctx ends.
func (s *Scrubber) Run(ctx context.Context) {
	var running sync.WaitGroup
	for ctx.Err() == nil {
		s.keepWorkers(ctx, &running)
		s.waitFor(ctx, lookInterval, s.wake)
		s.mu.Lock()
		for _, w := range s.workers {
			signal(w.wake)
		}
		s.mu.Unlock()
	}
	running.Wait()
}

// keepWorkers starts a worker for each disk that is open and has none, and forgets those that have ended.
func (s *Scrubber) keepWorkers(ctx context.Context, running *sync.WaitGroup) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for uuid, w := range s.workers {
		select {
		case <-w.ended:
			delete(s.workers, uuid)
		default:
		}
	}
	for _, d := range s.Disks.All() {
		if s.workers[d.UUID] != nil { // perhaps one that hangs: another one would do the same
			continue
		}
		w := s.newWorker(d.UUID)
		s.workers[d.UUID] = w
		running.Go(func() {
			defer close(w.ended)
			w.run(ctx)
		})
	}
}

func (s *Scrubber) waitFor(ctx context.Context, d time.Duration, early <-chan struct{}) {
	timer := s.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
	case <-early:
	case <-ctx.Done():
	}
}

// takeTurn returns when nobody else reads, or has done so for too long, and how to end the turn.
func (s *Scrubber) takeTurn(ctx context.Context) (end func()) {
	s.mu.Lock()
	turn := s.turn
	s.mu.Unlock()
	timer := s.Clock.NewTimer(turnPatience)
	defer timer.Stop()
	select {
	case turn <- struct{}{}:
		return func() { <-turn }
	case <-timer.C():
	case <-ctx.Done():
		return func() {}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.turn == turn { // nobody else has replaced it
		s.turn = make(chan struct{}, 1)
	}
	return func() {}
}

// worker reads the images of one disk. A disk that hangs holds up its own worker only. Scrubber.mu protects what others
// read.
type worker struct {
	*Scrubber

	uuid   disk.UID
	reader *reader
	wake   chan struct{}
	ended  chan struct{}

	// What others read, such as a repair that is late:

	loaded  bool
	state   state
	percent int
	triedAt map[disk.UID]time.Time // when the last attempt to repair a copy was
	trying  disk.UID
	looked  map[disk.UID]bool // objects that were looked at, and share nothing but what is noted

	badPieces, repairedPieces int64
	bad                       map[disk.UID]map[int64]bool // pieces of copies that are wrong and were counted
	requests                  map[disk.UID]string         // the last request to check each copy at once

	savedAt time.Time // when the state was written, and whether it has changed since
	dirty   bool

	// What only the worker itself reads:

	prunedAt, leftUntil time.Time
	busyUntil           map[disk.UID]time.Time // when to try again, for a copy on which somebody else works
	hashes              []disk.PieceHash       // of the image hashesOf
	hashesOf            disk.UID
	failures            map[disk.UID]int // how often in a row a copy was not repaired
	check               check            // the one that goes on
}

func (s *Scrubber) newWorker(uuid disk.UID) *worker {
	return &worker{
		Scrubber: s, uuid: uuid, reader: newReader(), wake: make(chan struct{}, 1), ended: make(chan struct{}),
		triedAt: map[disk.UID]time.Time{}, busyUntil: map[disk.UID]time.Time{},
		failures: map[disk.UID]int{}, bad: map[disk.UID]map[int64]bool{}, requests: map[disk.UID]string{},
	}
}

// run works until ctx ends or the disk is closed.
func (w *worker) run(ctx context.Context) {
	runtime.LockOSThread() // for its priority, and for ever: the thread ends with this goroutine
	lowerPriority()
	for ctx.Err() == nil {
		pause, open := w.takeStep(ctx)
		if !open {
			return
		}
		w.waitFor(ctx, pause, w.wake)
	}
	if d, err := w.Disks.Find(w.uuid); err == nil && w.loaded {
		w.saveState(d)
	}
}

// takeStep does one step if there is one to do, and returns how long to wait after it. open is false if the disk is not
// open.
func (w *worker) takeStep(ctx context.Context) (pause time.Duration, open bool) {
	d, err := w.Disks.Find(w.uuid)
	if err != nil {
		return 0, false
	}
	if w.Clock.Now().Before(w.leftUntil) {
		return lookInterval, true
	}
	if err := w.loadState(d); err != nil {
		w.leaveAlone(d, err)
		return lookInterval, true
	}
	defer w.takeTurn(ctx)()
	read, worked, err := w.workOnDisk(ctx, d)
	switch {
	case err != nil && ctx.Err() == nil:
		w.leaveAlone(d, err)
	case err == nil && worked:
		return w.pauseAfter(read), true
	}
	return lookInterval, true
}

// pauseAfter returns how long to wait after bytes were read, so that the rate is kept.
func (s *Scrubber) pauseAfter(read int64) time.Duration {
	return time.Duration(float64(read) / float64(s.BytesPerSecond) * float64(time.Second))
}

// leaveAlone has a disk left alone for a while, because of an error.
func (w *worker) leaveAlone(d diskset.Disk, err error) {
	w.leftUntil = w.Clock.Now().Add(troubleInterval)
	w.Logger.Warn("the scrub leaves a disk alone for a while", "disk", d.Name, "for", troubleInterval, "error", err)
}

// loadState reads the state from the disk, once. If that fails, nothing is known of the volumes that share wrong blocks,
// and what was reported of them stays. A state that was read and makes no sense is kept beside the one that replaces it:
// nobody knows any more which volumes are in it.
func (w *worker) loadState(d diskset.Disk) error {
	if w.loaded { // only this goroutine changes it
		return nil
	}
	read, err := readState(d.Path)
	if isNonsense(err) {
		w.Logger.Error("the scrub of a disk begins anew, and the volumes that share wrong blocks are not known any more",
			"disk", d.Name, "kept as", damagedFile, "error", err)
		read = state{Format: stateVersion, Omitted: true}
		err = errors.Join(keepDamaged(d.Path), writeState(d.Path, read))
	}
	if err != nil {
		return fmt.Errorf("read how far the scrub of disk %s is: %w", d.Name, err)
	}
	w.mu.Lock()
	w.state, w.loaded, w.savedAt = read, true, w.Clock.Now()
	w.mu.Unlock()
	w.Changed()
	return nil
}

// updateState changes the state. It replaces the slices in it, because currentState returns them.
func (w *worker) updateState(change func(*state)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(&w.state)
	w.dirty = true
}

func (w *worker) currentState() state {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state
}

// isDue says whether the state is to be written.
func (w *worker) isDue() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dirty && w.Clock.Since(w.savedAt) >= saveInterval
}

func (w *worker) saveState(d diskset.Disk) {
	w.mu.Lock()
	next := w.state
	w.savedAt, w.dirty = w.Clock.Now(), false
	w.mu.Unlock()
	if err := writeState(d.Path, next); err != nil {
		w.Logger.Warn("cannot write how far the scrub is: after a restart it goes on from where it was written last",
			"disk", d.Name, "error", err)
	}
}

// workOnDisk does one step on a disk, if there is one to do. It returns how many bytes it read.
func (w *worker) workOnDisk(ctx context.Context, d diskset.Disk) (read int64, worked bool, err error) {
	objects, err := d.List(ctx)
	if err != nil {
		return 0, false, err
	}
	if w.isDue() {
		w.saveState(d)
	}
	w.noteCopies(objects)
	w.pruneShares(ctx, d)
	for _, o := range objects {
		if o.Kind == disk.KindImage && o.State == disk.StateDamaged && w.repairCopy(ctx, d, o) {
			return 0, true, nil
		}
	}
	images := slices.DeleteFunc(objects, func(o disk.Object) bool {
		return o.Kind != disk.KindImage || o.State != disk.StateReady
	})
	slices.SortFunc(images, func(a, b disk.Object) int { return strings.Compare(string(a.UID), string(b.UID)) })
	if i := slices.IndexFunc(images, w.isCheckRequested); i >= 0 {
		read, err = w.continueCheck(ctx, d, images[i])
		return read, err == nil, err
	}
	if !w.currentState().GoesOn && !w.beginPass() {
		return 0, false, nil
	}
	return w.continuePass(ctx, d, images)
}

// beginPass begins a pass if it is time.
func (w *worker) beginPass() bool {
	now := w.Clock.Now()
	last := w.currentState()
	since := now.Sub(last.Started)
	if !last.Ended.IsZero() && since >= 0 && since < w.Interval {
		return false
	}
	w.updateState(func(st *state) { st.Started, st.GoesOn, st.Image, st.Piece = now, true, "", 0 })
	return true
}

// continuePass reads the next piece of the images, or ends the pass.
func (w *worker) continuePass(
	ctx context.Context, d diskset.Disk, images []disk.Object,
) (read int64, worked bool, err error) {
	next := w.currentState()
	i := slices.IndexFunc(images, func(o disk.Object) bool {
		return o.UID > next.Image || o.UID == next.Image && next.Piece < int64(disk.CountPieces(o.Bytes))
	})
	if i < 0 {
		w.updateState(func(st *state) { st.Ended, st.GoesOn, st.Image, st.Piece = w.Clock.Now(), false, "", 0 })
		w.saveState(d)
		w.Changed()
		return 0, true, nil
	}
	o := images[i]
	piece := next.Piece
	if o.UID != next.Image {
		piece = 0
	}
	read, err = w.checkPiece(ctx, d, o, piece)
	if err != nil {
		return 0, false, err
	}
	w.updateState(func(st *state) {
		if st.Image, st.Piece = o.UID, piece+1; st.Piece >= int64(disk.CountPieces(o.Bytes)) {
			st.noteRead(o.UID, w.Clock.Now())
		}
	})
	w.mu.Lock()
	w.percent = percentOf(images, o.UID, piece+1)
	w.mu.Unlock()
	return read, true, nil
}

// percentOf returns how much of the images comes before a piece of one.
func percentOf(images []disk.Object, uid disk.UID, piece int64) int {
	var done, all int64
	for _, o := range images {
		n := int64(disk.CountPieces(o.Bytes))
		all += n
		if o.UID < uid {
			done += n
		}
	}
	if all == 0 {
		return 0
	}
	return int(min(100, (done+piece)*100/all))
}

// copyOf returns what the cluster calls the copy of an image.
func copyOf(d diskset.Disk, o disk.Object) peer.Copy {
	image, _, _ := names.IsImage(o.Name)
	return peer.Copy{Image: image, UUID: string(o.UID), DiskUUID: string(d.UUID)}
}

// checkPiece reads a piece of an image, and marks the image as damaged if the piece is wrong. It returns only errors of
// the disk.
func (w *worker) checkPiece(
	ctx context.Context, d diskset.Disk, o disk.Object, piece int64,
) (read int64, err error) {
	if err := w.readHashes(ctx, d, o); err != nil || w.hashesOf != o.UID {
		return 0, err
	}
	if piece >= int64(len(w.hashes)) {
		return 0, nil
	}
	lease, err := d.Open(ctx, o.Name)
	if err != nil {
		return 0, ignoreGone(err)
	}
	defer func() { err = errors.Join(err, lease.Close()) }()
	offset := piece * disk.PieceBytes
	e := extent.Extent{Offset: offset, Length: min(disk.PieceBytes, o.Bytes-offset)}
	found, read, err := w.reader.hashPiece(lease.Path(), e)
	if err == nil && found == w.hashes[piece] {
		return read, nil
	}
	again, more, errAgain := w.reader.hashPiece(lease.Path(), e) // it may have been a fault on the way
	read += more
	switch {
	case errAgain == nil && again == w.hashes[piece]:
		w.Logger.Warn("a piece of an image was wrong when it was read, and right when it was read again", "disk", d.Name,
			"object", o.Name, "piece", piece, "error", err)
		return read, nil
	case errAgain != nil:
		if err := w.reader.checkAnswers(d.Path); err != nil {
			return read, fmt.Errorf("disk %s does not answer: %w", d.Name, err)
		}
		w.countBad(o.UID, piece)
		w.Copies.NoteDamage(ctx, copyOf(d, o), fmt.Sprintf("MiB %d cannot be read: %v", piece, errAgain))
	default:
		w.countBad(o.UID, piece)
		w.Copies.NoteDamage(ctx, copyOf(d, o), fmt.Sprintf("MiB %d is not what was sealed", piece))
	}
	return read, nil
}

// readHashes reads the hashes of an image's pieces, unless it has them. If they are wrong or cannot be read, it marks
// the image as damaged. It returns only errors of the disk.
func (w *worker) readHashes(ctx context.Context, d diskset.Disk, o disk.Object) error {
	if w.hashesOf == o.UID {
		return nil
	}
	hashes, err := d.Pieces(ctx, o.Name)
	if err != nil && errclass.Of(err) == errclass.None { // it may have been a fault on the way
		hashes, err = d.Pieces(ctx, o.Name)
	}
	switch {
	case err == nil:
		w.hashes, w.hashesOf = hashes, o.UID
	case errors.Is(err, errclass.Corrupt):
		w.Copies.NoteDamage(ctx, copyOf(d, o), err.Error())
	case errclass.Of(err) != errclass.None || ctx.Err() != nil:
		return ignoreGone(err)
	default: // one file that cannot be read must not end the scrub of all others
		if err := w.reader.checkAnswers(d.Path); err != nil {
			return fmt.Errorf("disk %s does not answer: %w", d.Name, err)
		}
		w.Copies.NoteDamage(ctx, copyOf(d, o), fmt.Sprintf("its hashes cannot be read: %v", err))
	}
	return nil
}

// ignoreGone returns no error for an image that was deleted, or found to be damaged, since it was listed. A disk that
// does not answer stays an error: otherwise a pass would end without having read everything.
func ignoreGone(err error) error {
	if errors.Is(err, errclass.NotFound) || errors.Is(err, errclass.Corrupt) {
		return nil
	}
	return err
}
