package repository

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kopia/kopia/fs"
	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/manifest"
	"github.com/kopia/kopia/snapshot"
	"github.com/kopia/kopia/snapshot/snapshotfs"
)

const (
	// tagSession marks a kopia snapshot as a session manifest; its value is the ID of the restore point to be.
	tagSession = "tag:varve-session"
	// tagSessionState is sessionRunning, or sessionEnded after a backup has failed and reported it.
	tagSessionState = "tag:varve-session-state"
	tagSessionOwner = "tag:varve-session-owner"
	// tagSessionDisks lists the disks of its source that a session backs up.
	tagSessionDisks = "tag:varve-session-disks"
	sessionRunning  = "running"
	sessionEnded    = "ended"
	// kopiaPin keeps `kopia snapshot expire` from deleting Varve's snapshots: restore points, because Varve has its own
	// retention, and session manifests and leases, because kopia keeps only a few incomplete snapshots. It is not a user's pin.
	kopiaPin = "varve"
	// sessionRenewal is how often a session manifest is stored again. kopia's margins assume at least every 45 minutes.
	sessionRenewal = 30 * time.Minute
	// sessionMargin is how late a session manifest may name what the session has stored or found. kopia forgets a content five
	// hours after marking it as deleted at the earliest, and a session notices a mark after 15 minutes at the latest. What is
	// named later than that is checked. The margin is shorter than sessionLive because exclusive maintenance has no margins: by
	// the time that it may begin, the session checks everything that it may take.
	sessionMargin = sessionLive - clockSkew
	// sessionLive is how long a session counts as running without a renewal.
	sessionLive = 2 * time.Hour
	// sessionLife is how long a session manifest is kept after its last renewal, so that the next backup finds what was uploaded.
	sessionLife = 14 * 24 * time.Hour
	// sessionDoubt is the age from which finding a session manifest proves nothing: others may have removed it because it was not
	// renewed, and a request that was still under way may have brought it back.
	sessionDoubt = sessionLife - 24*time.Hour
)

// session is one backup. While it runs, a session manifest protects what it has stored and found from every garbage collection.
// The manifest is an incomplete kopia snapshot whose root names the parent and everything that is finished.
type session struct {
	writer
	r        *Repository
	q        *Request
	progress *progress
	// id is the ID of the future restore point.
	id      string
	started time.Time
	// cancel ends the session at once.
	cancel context.CancelCauseFunc
	// parent is the root of the parent that the session manifest names, or nil.
	parent *snapshot.DirEntry
	// after is the After of the future restore point.
	after time.Time
	// doubts says which disks cannot start from the parent, and why.
	doubts map[string]FullReason
	// namesakes holds, for each disk, the other disks that its bitmap may belong to.
	namesakes map[string][]*Disk
	work      sessionWork
	// manifests are the session manifests that exist or may exist; the last one counts. stored is when storing it began.
	manifests []manifest.ID
	stored    time.Time
}

func (r *Repository) newSession(ctx context.Context, q *Request) (*session, error) {
	s := &session{r: r, q: q, progress: newProgress(q), id: cmp.Or(q.ID, newID())}
	inner, cancel := context.WithCancelCause(ctx)
	inner, w, err := r.rep.NewDirectWriter(inner, repo.WriteSessionOptions{Purpose: "varve backup", OnUpload: s.progress.uploaded})
	if err != nil {
		cancel(nil)
		return nil, fmt.Errorf("begin to write: %w", err)
	}
	s.writer = writer{ctx: inner, w: w, purpose: "a backup"}
	s.cancel, s.started = cancel, w.Time()
	return s, nil
}

// begin stores the session manifest, and returns the parent if it still exists. The order makes this safe: a garbage collection
// that does not see the session manifest began before that was stored. It then sees the parent, because begin looks for the
// parent afterwards.
func (s *session) begin(parent *RestorePoint) (*RestorePoint, error) {
	var err error
	if parent != nil {
		if s.parent, err = s.root(parent); err != nil {
			return nil, err
		}
	}
	if err := s.store(s.ctx, sessionRunning); err != nil {
		return nil, fmt.Errorf("store the session manifest: %w", err)
	}
	if err := s.w.Refresh(s.ctx); err != nil {
		return nil, fmt.Errorf("look for what others have stored: %w", err)
	}
	if err := noExclusiveMaintenance(s.ctx, s.w); err != nil {
		return nil, err
	}
	if s.parent == nil {
		return nil, nil
	}
	if s.parent, err = s.root(parent); err != nil || s.parent == nil {
		return nil, err // It was deleted in between.
	}
	return parent, nil
}

// store makes what the session has finished durable, and names it in a new session manifest that replaces the one before. It
// checks what may be gone because this machine slept, or the storage was unavailable, for hours. settle stores that again.
func (s *session) store(ctx context.Context, state string) error {
	if err := s.r.notReplaced(ctx); err != nil {
		return err
	}
	if err := s.findManifest(ctx, state); err != nil {
		return err
	}
	began := s.w.Time()
	finished := s.work.collect()
	unnamed := s.unnamedSince(finished)
	if !unnamed.IsZero() && s.longAgo(unnamed, sessionMargin) {
		err := s.recheck(ctx, finished) // Check before a manifest names missing data: every garbage collection would fail.
		s.work.uncollect(finished)
		if err != nil {
			return err
		}
		finished = s.work.collect()
	}
	if unnamed.IsZero() {
		unnamed = began
	}
	root, err := s.storeRoot(ctx, finished, state)
	if err == nil {
		err = s.replaceManifest(ctx, root, state)
	}
	reached("session put")
	if err == nil {
		err = s.w.Flush(ctx)
	}
	if err == nil {
		s.stored = began
		reached("session stored")
		if s.longAgo(unnamed, sessionMargin) {
			err = s.recheck(ctx, finished)
		}
	}
	if err != nil {
		s.work.uncollect(finished)
		return err
	}
	s.work.confirm(finished)
	return nil
}

// longAgo says whether more than d has passed since at. It also says so if the clock was set back, because nobody knows then.
func (s *session) longAgo(at time.Time, d time.Duration) bool {
	passed := s.w.Time().Sub(at)
	return passed > d || passed < -clockSkew
}

// unnamedSince returns the time since which f may have something that only a live session protects, or zero if a session manifest
// names all of it.
func (s *session) unnamedSince(f finishedWork) time.Time {
	if !f.since.IsZero() && !s.stored.IsZero() && s.stored.Before(f.since) {
		return s.stored
	}
	return f.since
}

// findManifest checks that the session manifest still exists. It is gone if this machine slept for two weeks, or if somebody
// deleted it.
func (s *session) findManifest(ctx context.Context, state string) error {
	if s.stored.IsZero() {
		return nil
	}
	if s.longAgo(s.stored, sessionMargin) {
		if err := s.w.Refresh(ctx); err != nil {
			return fmt.Errorf("look for the session manifest: %w", err)
		}
	}
	for _, id := range s.manifests {
		if s.longAgo(s.stored, sessionDoubt) {
			break // A manifest that is found now may not have been stored in time.
		}
		if _, err := s.w.GetManifest(ctx, id, nil); err == nil {
			return nil
		} else if !errors.Is(err, manifest.ErrNotFound) {
			return fmt.Errorf("look for the session manifest: %w", err)
		}
	}
	s.work.doubtAll()
	if s.parent != nil && state == sessionRunning {
		return fmt.Errorf("%w: the session manifest has gone, and with it what kept the parent", ErrNotFound)
	}
	return nil
}

// replaceManifest hands the session manifest to kopia, together with the deletion of those before it.
func (s *session) replaceManifest(ctx context.Context, root *snapshot.DirEntry, state string) error {
	owner := s.w.ClientOptions().UsernameAtHost()
	id, err := snapshot.SaveSnapshot(ctx, s.w, &snapshot.Manifest{
		Source: s.q.Source.info(), Description: "what a backup by " + owner + " has stored", IncompleteReason: leaseReason,
		StartTime: fs.UTCTimestampFromTime(s.started), EndTime: fs.UTCTimestampFromTime(s.w.Time()), RootEntry: root, Pins: []string{kopiaPin},
		Tags: map[string]string{tagSession: s.id, tagSessionState: state, tagSessionOwner: owner, tagSessionDisks: s.q.diskNames()},
	})
	if err != nil {
		return err
	}
	before := s.manifests
	s.manifests = append(s.manifests[:len(before):len(before)], id)
	for _, old := range before {
		if err := removeManifest(ctx, s.w, old); err != nil {
			return err
		}
	}
	s.manifests = []manifest.ID{id}
	return nil
}

// storeRoot stores the directory that names the parent and everything that is finished.
func (s *session) storeRoot(ctx context.Context, f finishedWork, state string) (*snapshot.DirEntry, error) {
	at := fs.UTCTimestampFromTime(s.w.Time())
	dir := &snapshot.DirManifest{StreamType: "kopia:directory", Summary: &fs.DirectorySummary{TotalDirCount: 1, MaxModTime: at}}
	for i, d := range f.disks {
		entries, err := d.store(ctx, s.w, i)
		if err != nil {
			return nil, err
		}
		dir.Entries = append(dir.Entries, entries...)
	}
	for _, e := range dir.Entries {
		e.ModTime = at
		dir.Summary.TotalFileCount++
		dir.Summary.TotalFileSize += e.FileSize
	}
	if s.parent != nil && state == sessionRunning {
		parent := *s.parent
		parent.Name = "parent"
		dir.Entries = append(dir.Entries, &parent)
	}
	id, err := snapshotfs.WriteDirManifest(ctx, s.w, "", dir, tableCompressor)
	if err != nil {
		return nil, err
	}
	return &snapshot.DirEntry{Name: "session", Type: snapshot.EntryTypeDirectory, Permissions: 0o700, ModTime: at, ObjectID: id, DirSummary: dir.Summary}, nil
}

// end hands the deletion of the session manifest to kopia.
func (s *session) end(ctx context.Context) error {
	for _, id := range s.manifests {
		if err := removeManifest(ctx, s.w, id); err != nil {
			return fmt.Errorf("end the session manifest: %w", err)
		}
	}
	s.manifests = nil
	return nil
}

// endFailed hands the deletion of earlier failed sessions of the same disks to kopia. The restore point that is about to be
// published has what they stored, or nobody needs it.
func (s *session) endFailed(ctx context.Context) error {
	src := s.q.Source.info()
	failed, err := snapshot.ListSnapshotManifests(ctx, s.w, &src, map[string]string{tagSessionState: sessionEnded, tagSessionDisks: s.q.diskNames()})
	if err != nil {
		return fmt.Errorf("list earlier sessions: %w", err)
	}
	for _, id := range failed {
		if err := removeManifest(ctx, s.w, id); err != nil {
			return fmt.Errorf("end an earlier session: %w", err)
		}
	}
	return nil
}

// keep makes what was uploaded findable, as checkpoint does, so that the next backup does not upload it again. It must not be
// called after a restore point's manifest was handed to kopia, because the flush would store that, too.
func (s *session) keep() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), keepTimeout)
	defer cancel()
	if s.work.empty() {
		if s.end(ctx) == nil {
			_ = s.w.Flush(ctx)
		}
		return
	}
	// Whatever ended the backup may end this, too. That costs an upload and nothing else.
	_ = s.store(ctx, sessionEnded)
}

func (s *session) close() error {
	err := errors.Join(s.w.Close(context.WithoutCancel(s.ctx)), s.r.failed())
	s.cancel(nil)
	return err
}
