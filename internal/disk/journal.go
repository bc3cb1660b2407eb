package disk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/varvebackup/varve/internal/errclass"
)

// JournalSuffix is appended to the name of a file to name its journal.
const JournalSuffix = ".varve-restore"

// defaultSaveEvery bounds the work that a crash loses.
const defaultSaveEvery = 5 * time.Second

// JournalOptions are for NewJournal.
type JournalOptions struct {
	// Path is where the journal is kept. If it is "", the journal of a file is beside it, under its name with
	// JournalSuffix, and that of a device or an NBD export is not kept.
	Path string
	// Token identifies what is restored: of two restores with the same token, one may continue where the other stopped.
	Token string
	// Target identifies a device or an NBD export, if the caller knows it better than the system does, such as by the UID
	// of a claim. The name must never be given to another one. It does not count for a file, which has an identity of its
	// own. "": as far as the system tells.
	Target string
	// RegionBytes is the size of the regions that are noted as finished. The disk's last region may be smaller.
	RegionBytes int64
	// Every is the time between two checkpoints; 0 means 5 seconds.
	Every time.Duration
	// Clock defaults to the real one.
	Clock clock.PassiveClock
}

// Journal notes which regions of a target are finished and on stable storage, so that an interrupted restore can
// resume. It belongs to one target: OpenTarget reads it, or begins it. A restore resumes if the journal has the same
// token and the target has the same identity, format and size. The journal cannot see other writes to the target; there
// must not be any. An NBD export, or a device without a serial number, could be another one each time, so everything is
// written again, unless JournalOptions.Target identifies it.
//
// The caller asks Done before it writes a region, and calls Finished after it has. When the restore is complete and the
// target is closed, Remove ends the journal. When the restore has failed, Save keeps what was done. Methods are
// safe for concurrent use.
type Journal struct {
	o     JournalOptions
	path  string
	files journalFiles
	// givenTarget is the name of a target that the caller has identified, or "".
	givenTarget string

	// writing is held while the journal is replaced.
	writing sync.Mutex
	// mu guards the rest.
	mu    sync.Mutex
	state journalState
	dirty bool
	last  time.Time
}

// NewJournal returns an empty journal for one OpenTarget.
func NewJournal(o JournalOptions) (*Journal, error) {
	if o.RegionBytes <= 0 || o.Token == "" {
		return nil, errclass.Errorf(errclass.Invalid, "journal of a restore: token %q with regions of %d bytes", o.Token, o.RegionBytes)
	}
	o.Every = cmp.Or(o.Every, defaultSaveEvery)
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	return &Journal{o: o, path: o.Path, files: osFiles{}}, nil
}

// Done reports whether a region is already on the target.
func (j *Journal) Done(region int) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.state.Finished.has(region)
}

// Kept reports whether the journal outlives the process: that of a file does, that of a device or an NBD export only
// with a Path.
func (j *Journal) Kept() bool { return j.path != "" }

// DoneBytes returns how much of the disk is finished.
func (j *Journal) DoneBytes() int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.state.finishedBytes()
}

// Finished notes that a region was written. From time to time it syncs the target and writes the journal. It ignores an
// error of these: the next attempt will fail, too, and the caller's own Save says why.
func (j *Journal) Finished(ctx context.Context, target Target, region int) {
	j.mu.Lock()
	j.state.Finished.set(region)
	j.dirty = true
	now := j.o.Clock.Now()
	due := now.Sub(j.last) >= j.o.Every
	if due {
		j.last = now
	}
	j.mu.Unlock()
	if due && j.writing.TryLock() {
		defer j.writing.Unlock()
		_ = j.saveLocked(ctx, target)
	}
}

// Save makes durable what was finished so far, first on the target, then in the journal. After a restore that was
// cancelled, ctx must not be the restore's.
func (j *Journal) Save(ctx context.Context, target Target) error {
	j.writing.Lock()
	defer j.writing.Unlock()
	return j.saveLocked(ctx, target)
}

// saveLocked is Save for a caller that holds writing.
func (j *Journal) saveLocked(ctx context.Context, target Target) error {
	j.mu.Lock()
	state, dirty := j.state.clone(), j.dirty
	j.dirty = false
	j.mu.Unlock()
	if !dirty || j.path == "" {
		return nil
	}
	// Regions that finish from here on are not in state, and may still be on their way.
	err := target.Sync(ctx)
	if err == nil {
		err = j.replaceState(&state)
	}
	if err != nil {
		j.mu.Lock()
		j.dirty = true
		j.mu.Unlock()
		return fmt.Errorf("journal of restore %s: %w", j.path, err)
	}
	return nil
}

// Remove ends the journal of a restore that is complete.
func (j *Journal) Remove() error {
	j.writing.Lock()
	defer j.writing.Unlock()
	return j.removeFile()
}

// resumeTarget reads the journal, and reports whether the restore to the target can resume. If not, why is a hint for people,
// or empty. beside is the file that a journal without a path is kept beside.
func (j *Journal) resumeTarget(beside string, format Format, id identity, bytes int64) (resumed bool, why string, err error) {
	if j == nil {
		return false, "", nil
	}
	if j.path == "" && beside != "" {
		j.path = journalOf(beside)
	}
	if beside == "" && j.o.Target != "" {
		j.givenTarget = "given:" + j.o.Target
		id = identity{name: j.givenTarget, certain: true}
	}
	fresh := newState(j.o.Token, "", bytes, j.o.RegionBytes)
	fresh.Format = format
	if fresh.regionCount() > maxRegions {
		return false, "", errclass.Errorf(errclass.Invalid, "journal of a restore: a disk of %d bytes with regions of %d: at most %d regions", bytes, j.o.RegionBytes, maxRegions)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.state, j.dirty, j.last = fresh, false, j.o.Clock.Now()
	if j.path == "" {
		return false, "", nil
	}
	data, err := j.files.Read(j.path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, "", nil
	}
	if err != nil {
		return false, "", fmt.Errorf("journal of restore: %w", err)
	}
	found, err := parseState(data)
	switch {
	case err != nil:
		return false, fmt.Sprintf("its journal %s cannot be read (%v)", j.path, err), nil
	case found.Token != j.o.Token:
		return false, fmt.Sprintf("it is half of another restore (%s), which can be completed", found.Token), nil
	case found.Format != format:
		return false, fmt.Sprintf("its journal %s is of a restore as %s, which can be completed", j.path, found.Format), nil
	case found.Bytes != bytes || found.RegionBytes != j.o.RegionBytes:
		return false, fmt.Sprintf("its journal %s is of a disk of other sizes", j.path), nil
	case !id.certain || found.Target != id.name:
		return false, fmt.Sprintf("its journal %s may be of another target (%s)", j.path, found.Target), nil
	}
	j.state = found
	return true, "", nil
}

// journalOf returns the path of the journal of a restore to this file, whichever link leads to the file.
func journalOf(path string) string {
	if to, err := filepath.EvalSymlinks(path); err == nil {
		path = to
	}
	return path + JournalSuffix
}

// refuseUnfinished refuses a file, with this identity, that an unfinished restore has written to. It ignores a journal that is
// known to belong to another file, whose place this one has taken.
func refuseUnfinished(path string, id identity) error {
	journal := journalOf(path)
	data, err := os.ReadFile(journal)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("journal of restore: %w", err)
	}
	if found, err := parseState(data); err == nil && id.certain && found.Target != id.name {
		return nil
	}
	return errclass.Errorf(errclass.Conflict, "disk %s is half of a restore, which runs or was interrupted: let it end, or start the same restore again to complete it; if you know that the disk is whole, remove %s", path, journal)
}

// beginTarget notes that the restore of the target with this identity has begun. Nothing has been written to the target yet.
func (j *Journal) beginTarget(id identity) error {
	if j == nil || j.path == "" {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.state.Target = cmp.Or(j.givenTarget, id.name)
	if err := j.replaceState(&j.state); err != nil {
		return fmt.Errorf("journal of restore %s: %w", j.path, err)
	}
	return nil
}

// removeFile removes the journal, whichever restore it belongs to. The target may be changed in any way afterwards.
func (j *Journal) removeFile() error {
	if j == nil || j.path == "" {
		return nil
	}
	if err := removeDurably(j.files, j.path); err != nil {
		return fmt.Errorf("journal of restore %s: %w", j.path, err)
	}
	return nil
}

// replaceState makes s the journal. A full file system has no room for a second file, so there it overwrites the one before.
func (j *Journal) replaceState(s *journalState) error {
	err := writeDurably(j.files, j.path, s.marshal())
	if !errclass.IsFull(err) {
		return err
	}
	if j.overwriteState(s) == nil {
		return nil
	}
	return errclass.Errorf(errclass.ErrTargetFull, "%w", err)
}

// overwriteState writes s over an earlier state of the same restore, byte by byte. Both have the same length, and differ
// only in regions that s has and the earlier state does not. A crash leaves a mixture: its finished regions are all in
// s, and include all that were finished before.
func (j *Journal) overwriteState(s *journalState) error {
	data, err := j.files.Read(j.path)
	if err != nil {
		return err
	}
	was, err := parseState(data)
	if err != nil {
		return err
	}
	if next := s.marshal(); was.isEarlierThan(s) && len(data) == len(next) {
		return errors.Join(j.files.Overwrite(j.path, next), j.files.Sync(j.path))
	}
	return errclass.Errorf(errclass.Conflict, "%s is not of this restore", j.path)
}
