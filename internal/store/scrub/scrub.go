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
	"github.com/varvebackup/varve/internal/store/reflink"
)

const (
	// lookInterval is how often the disks are looked at if nothing is to be read.
	lookInterval = 30 * time.Second
	// saveInterval is how often the state of a disk is written. A restart reads again what was read since then.
	saveInterval = time.Minute
	// repairInterval is between two attempts to repair a copy, and troubleInterval how long a disk that does not answer is
	// left alone.
	repairInterval  = 10 * time.Minute
	troubleInterval = 5 * time.Minute
)

// Copies are the copies of images in the cluster.
type Copies interface {
	// NoteDamage marks a copy as damaged, and reports it.
	NoteDamage(ctx context.Context, c peer.Copy, why string)
	// CanRepair says whether a copy is wanted where it is, and others that are ready could have its bytes.
	CanRepair(ctx context.Context, c peer.Copy) (wanted, others bool)
	// FetchPiece reads a piece of an image from another copy than that one.
	FetchPiece(ctx context.Context, c peer.Copy, piece int, p []byte) error
}

// repairable is a disk whose images can be repaired.
type repairable interface {
	Repair(ctx context.Context, name disk.Name, uid disk.UID, fetch reflink.FetchPiece) error
	Place(ctx context.Context, name disk.Name, within extent.Extent) ([]reflink.Placed, error)
}

var _ repairable = (*reflink.Disk)(nil)

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

	reader *reader
	turn   int // which disk comes next
	wake   chan struct{}

	mu    sync.Mutex
	disks map[disk.UID]*scrubbed
}

// scrubbed is what is known of a disk. Scrubber.mu protects what Status and MayRepair read.
type scrubbed struct {
	state   state
	percent int
	triedAt map[disk.UID]time.Time // when to repair a copy was tried
	trying  disk.UID

	savedAt, prunedAt, leftUntil time.Time
	dirty                        bool
	hashes                       []disk.PieceHash // of the image hashesOf
	hashesOf                     disk.UID
}

// Status is what is known of a disk.
type Status struct {
	// LastEnded is when the last whole pass ended; zero if there was none.
	LastEnded time.Time
	// GoesOn says that a pass goes on, and Percent how far it is.
	GoesOn  bool
	Percent int
	// Shares are the volumes that have wrong blocks of a copy.
	Shares []Share
}

// New returns a Scrubber that has read nothing yet.
func New(o Options) *Scrubber {
	if o.Changed == nil {
		o.Changed = func() {}
	}
	return &Scrubber{
		Options: o, reader: newReader(), wake: make(chan struct{}, 1), disks: map[disk.UID]*scrubbed{},
	}
}

// WakeUp makes the Scrubber look for damaged copies soon.
func (s *Scrubber) WakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// MayRepair says whether a damaged copy may soon be good: its repair goes on, or was not tried yet.
func (s *Scrubber) MayRepair(uuid, image disk.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.disks[uuid]
	if d == nil {
		return true
	}
	_, tried := d.triedAt[image]
	return !tried || d.trying == image
}

// Status returns what is known of a disk. It is not ok if the disk has not been looked at.
func (s *Scrubber) Status(uuid disk.UID) (status Status, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.disks[uuid]
	if d == nil {
		return Status{}, false
	}
	return Status{
		LastEnded: d.state.Ended, GoesOn: d.state.GoesOn, Percent: d.percent, Shares: slices.Clone(d.state.Shares),
	}, true
}

// Run works until ctx ends.
func (s *Scrubber) Run(ctx context.Context) {
	runtime.LockOSThread() // for its priority, and for ever: the thread ends with this goroutine
	lowerPriority()
	for ctx.Err() == nil {
		wait := s.takeTurn(ctx)
		timer := s.Clock.NewTimer(wait)
		select {
		case <-timer.C():
		case <-s.wake:
		case <-ctx.Done():
		}
		timer.Stop()
	}
	for _, d := range s.Disks.All() {
		if known := s.disks[d.UUID]; known != nil && known.dirty {
			s.save(d, known)
		}
	}
}

// takeTurn does one step on the next disk that has something to do, and returns how long to wait after it.
func (s *Scrubber) takeTurn(ctx context.Context) time.Duration {
	all := s.Disks.All()
	s.forgetClosed(all)
	for range all {
		s.turn++
		d := all[s.turn%len(all)]
		known := s.know(d)
		if s.Clock.Now().Before(known.leftUntil) {
			continue
		}
		read, worked, err := s.work(ctx, d, known)
		if err != nil && ctx.Err() == nil {
			known.leftUntil = s.Clock.Now().Add(troubleInterval)
			s.Logger.Warn("the scrub leaves a disk alone for a while", "disk", d.Name, "for", troubleInterval, "error", err)
		}
		if worked && err == nil {
			return s.pause(read)
		}
	}
	return lookInterval
}

// pause returns how long to wait after bytes were read, so that the rate is kept.
func (s *Scrubber) pause(read int64) time.Duration {
	return time.Duration(float64(read) / float64(s.BytesPerSecond) * float64(time.Second))
}

// forgetClosed forgets disks that are not open any more. What matters of them is on them.
func (s *Scrubber) forgetClosed(open []diskset.Disk) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for uuid := range s.disks {
		if !slices.ContainsFunc(open, func(d diskset.Disk) bool { return d.UUID == uuid }) {
			delete(s.disks, uuid)
		}
	}
}

// know returns what is known of a disk, which it reads from the disk at first.
func (s *Scrubber) know(d diskset.Disk) *scrubbed {
	if known := s.disks[d.UUID]; known != nil { // only this goroutine writes the map
		return known
	}
	read, err := readState(d.Path)
	if err != nil {
		s.Logger.Warn("the scrub of a disk begins anew", "disk", d.Name, "error", err)
	}
	known := &scrubbed{state: read, savedAt: s.Clock.Now(), triedAt: map[disk.UID]time.Time{}}
	s.mu.Lock()
	s.disks[d.UUID] = known
	s.mu.Unlock()
	s.Changed()
	return known
}

// update changes what Status returns of a disk.
func (s *Scrubber) update(known *scrubbed, change func(*state)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&known.state)
	known.dirty = true
}

func (s *Scrubber) save(d diskset.Disk, known *scrubbed) {
	if err := writeState(d.Path, known.state); err != nil {
		s.Logger.Warn("how far the scrub is cannot be written: a restart begins again where it was written last",
			"disk", d.Name, "error", err)
	}
	known.savedAt, known.dirty = s.Clock.Now(), false
}

// work does one step on a disk, if there is one to do. It returns how many bytes it read.
func (s *Scrubber) work(ctx context.Context, d diskset.Disk, known *scrubbed) (read int64, worked bool, err error) {
	objects, err := d.List(ctx)
	if err != nil {
		return 0, false, err
	}
	if known.dirty && s.Clock.Since(known.savedAt) >= saveInterval {
		s.save(d, known)
	}
	s.pruneShares(ctx, d, known)
	for _, o := range objects {
		if o.Kind == disk.KindImage && o.State == disk.StateDamaged && s.repairCopy(ctx, d, known, o, objects) {
			return 0, true, nil
		}
	}
	images := slices.DeleteFunc(objects, func(o disk.Object) bool {
		return o.Kind != disk.KindImage || o.State != disk.StateReady
	})
	slices.SortFunc(images, func(a, b disk.Object) int { return strings.Compare(string(a.UID), string(b.UID)) })
	if !known.state.GoesOn && !s.beginPass(known) {
		return 0, false, nil
	}
	return s.continuePass(ctx, d, known, images)
}

// beginPass begins a pass if it is time.
func (s *Scrubber) beginPass(known *scrubbed) bool {
	now := s.Clock.Now()
	since := now.Sub(known.state.Started)
	if !known.state.Ended.IsZero() && since >= 0 && since < s.Interval {
		return false
	}
	s.update(known, func(st *state) { st.Started, st.GoesOn, st.Image, st.Piece = now, true, "", 0 })
	return true
}

// continuePass reads the next piece of the images, or ends the pass.
func (s *Scrubber) continuePass(
	ctx context.Context, d diskset.Disk, known *scrubbed, images []disk.Object,
) (read int64, worked bool, err error) {
	i := slices.IndexFunc(images, func(o disk.Object) bool {
		return o.UID > known.state.Image || o.UID == known.state.Image && known.state.Piece < countPieces(o)
	})
	if i < 0 {
		s.update(known, func(st *state) { st.Ended, st.GoesOn, st.Image, st.Piece = s.Clock.Now(), false, "", 0 })
		s.save(d, known)
		s.Changed()
		return 0, true, nil
	}
	o := images[i]
	piece := known.state.Piece
	if o.UID != known.state.Image {
		piece = 0
	}
	read, err = s.checkPiece(ctx, d, known, o, piece)
	if err != nil {
		return 0, false, err
	}
	s.update(known, func(st *state) { st.Image, st.Piece = o.UID, piece+1 })
	s.mu.Lock()
	known.percent = percentOf(images, o.UID, piece+1)
	s.mu.Unlock()
	return read, true, nil
}

func countPieces(o disk.Object) int64 { return (o.Bytes + disk.PieceBytes - 1) / disk.PieceBytes }

// percentOf returns how much of the images comes before a piece of one.
func percentOf(images []disk.Object, uid disk.UID, piece int64) int {
	var done, all int64
	for _, o := range images {
		n := countPieces(o)
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

// checkPiece reads a piece of an image, and marks the image as damaged if the piece is wrong. An error is one of the disk.
func (s *Scrubber) checkPiece(
	ctx context.Context, d diskset.Disk, known *scrubbed, o disk.Object, piece int64,
) (read int64, err error) {
	if known.hashesOf != o.UID {
		hashes, err := d.Pieces(ctx, o.Name)
		switch {
		case errors.Is(err, errclass.Corrupt):
			s.Copies.NoteDamage(ctx, copyOf(d, o), err.Error())
			return 0, nil
		case err != nil:
			return 0, s.ignoreGone(err)
		}
		known.hashes, known.hashesOf = hashes, o.UID
	}
	if piece >= int64(len(known.hashes)) {
		return 0, nil
	}
	lease, err := d.Open(ctx, o.Name)
	if err != nil {
		return 0, s.ignoreGone(err)
	}
	defer func() { err = errors.Join(err, lease.Close()) }()
	offset := piece * disk.PieceBytes
	e := extent.Extent{Offset: offset, Length: min(disk.PieceBytes, o.Bytes-offset)}
	found, read, err := s.reader.hashPiece(lease.Path(), e)
	if err == nil && found == known.hashes[piece] {
		return read, nil
	}
	again, more, errAgain := s.reader.hashPiece(lease.Path(), e) // it may have been a fault on the way
	read += more
	switch {
	case errAgain == nil && again == known.hashes[piece]:
		s.Logger.Warn("a piece of an image was wrong when it was read, and right when it was read again", "disk", d.Name,
			"object", o.Name, "piece", piece, "error", err)
		return read, nil
	case errAgain != nil:
		if err := s.reader.checkAnswers(d.Path); err != nil {
			return read, fmt.Errorf("disk %s does not answer: %w", d.Name, err)
		}
		s.Copies.NoteDamage(ctx, copyOf(d, o), fmt.Sprintf("MiB %d cannot be read: %v", piece, errAgain))
	default:
		s.Copies.NoteDamage(ctx, copyOf(d, o), fmt.Sprintf("MiB %d is not what was sealed", piece))
	}
	return read, nil
}

// ignoreGone returns no error for an image that was deleted or damaged since it was listed, or that is busy.
func (s *Scrubber) ignoreGone(err error) error {
	for _, class := range []error{errclass.NotFound, errclass.Corrupt, errclass.Transient} {
		if errors.Is(err, class) {
			return nil
		}
	}
	return err
}
