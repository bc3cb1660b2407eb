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

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/internal/repository/storage"
	"github.com/varvebackup/varve/internal/repository/table"
)

const (
	// sessionRenewal is how often a session manifest is stored again. kopia's margins assume at least every 45 minutes.
	sessionRenewal = 30 * time.Minute
	// sessionMargin is how late a session manifest may name what the session has stored or found. kopia forgets a content five
	// hours after marking it as deleted at the earliest, and a session notices a mark after 15 minutes at the latest. What is
	// named later than that is checked. The margin is shorter than SessionLive because exclusive maintenance has no margins: by
	// the time that it may begin, the session checks everything that it may take.
	sessionMargin = engine.SessionLive - engine.ClockSkew
	// sessionDoubt is the age from which finding a session manifest proves nothing: others may have removed it because it was not
	// renewed, and a request that was still under way may have brought it back.
	sessionDoubt = engine.SessionLife - 24*time.Hour
)

// session is one backup. While it runs, a session manifest protects what it has stored and found from every garbage collection.
// The manifest is an incomplete kopia snapshot whose root names the parent and everything that is finished.
type session struct {
	ctx      context.Context //nolint:containedctx // kopia's writer belongs to a context of its own
	w        *engine.MendingWriter
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
	// tree is what is stored of a tree of files; nil in a backup of disks.
	tree *sessionTree
	// lookedForLosses is when the index was last compared with the packs.
	lookedForLosses time.Time
	// manifests are the session manifests that exist or may exist; the last one counts. stored is when storing it began.
	manifests []manifest.ID
	stored    time.Time
}

func (r *Repository) newSession(ctx context.Context, q *Request) (*session, error) {
	s := &session{r: r, q: q, progress: newProgress(q), id: cmp.Or(q.ID, engine.NewPointID())}
	inner, cancel := context.WithCancelCause(ctx)
	inner, w, err := r.conn.Kopia.NewDirectWriter(inner, repo.WriteSessionOptions{Purpose: "varve backup", OnUpload: s.progress.addUploaded})
	if err != nil {
		cancel(nil)
		s.progress.reports.Stop()
		return nil, fmt.Errorf("begin to write: %w", err)
	}
	s.ctx, s.cancel, s.started = inner, cancel, w.Time()
	if s.w, err = engine.NewMendingWriter(inner, w); err != nil {
		cancel(nil)
		s.progress.reports.Stop()
		return nil, errors.Join(fmt.Errorf("begin to write: %w", err), w.Close(inner))
	}
	return s, nil
}

// protectParent stores the session manifest, and returns the parent if it still exists. The order makes this safe: a garbage
// collection that does not see the session manifest began before that was stored. It then sees the parent, because protectParent
// looks for the parent afterwards.
func (s *session) protectParent(parent *RestorePoint) (*RestorePoint, error) {
	var err error
	if parent != nil {
		if s.parent, err = engine.PointRoot(s.ctx, s.w, parent); err != nil {
			return nil, err
		}
	}
	if err := s.storeManifest(s.ctx, engine.SessionRunning); err != nil {
		return nil, fmt.Errorf("store the session manifest: %w", err)
	}
	if err := s.w.Refresh(s.ctx); err != nil {
		return nil, fmt.Errorf("look for what others have stored: %w", err)
	}
	if err := engine.CheckNoExclusiveMaintenance(s.ctx, s.w); err != nil {
		return nil, err
	}
	if err := s.findLosses(s.ctx); err != nil {
		return nil, err
	}
	s.w.Checked()
	if s.parent == nil {
		return nil, nil
	}
	if s.parent, err = engine.PointRoot(s.ctx, s.w, parent); err != nil || s.parent == nil {
		return nil, err // It was deleted in between.
	}
	return parent, nil
}

// storeManifest makes what the session has finished durable, and names it in a new session manifest that replaces the one before.
// It checks what may be gone because this machine slept, or the storage was unavailable, for hours. settle stores that again.
func (s *session) storeManifest(ctx context.Context, state string) error {
	if err := s.r.conn.CheckNotReplaced(ctx); err != nil {
		return err
	}
	if err := s.findManifest(ctx, state); err != nil {
		return err
	}
	began := s.w.Time()
	finished := s.work.collectFinished()
	unnamed := s.unnamedSince(finished)
	if !unnamed.IsZero() && s.longAgo(unnamed, sessionMargin) {
		err := s.checkFinishedAgain(ctx, finished) // Check before a manifest names missing data: every garbage collection would fail.
		s.work.uncollectFinished(finished)
		if err != nil {
			return err
		}
		finished = s.work.collectFinished()
	}
	if unnamed.IsZero() {
		unnamed = began
	}
	root, err := s.storeRoot(ctx, finished, state)
	if err == nil {
		err = s.replaceManifest(ctx, root, state)
	}
	engine.Reached("session put")
	if err == nil {
		err = s.w.Flush(ctx)
	}
	if err == nil {
		s.stored = began
		engine.Reached("session stored")
		if s.longAgo(unnamed, sessionMargin) {
			err = s.checkFinishedAgain(ctx, finished)
		}
	}
	if err != nil {
		s.work.uncollectFinished(finished)
		return err
	}
	s.work.confirmNamed(finished)
	return nil
}

// longAgo says whether more than d has passed since at. It also says so if the clock was set back, because nobody knows then.
func (s *session) longAgo(at time.Time, d time.Duration) bool {
	passed := s.w.Time().Sub(at)
	return passed > d || passed < -engine.ClockSkew
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
	if s.parent != nil && state == engine.SessionRunning {
		return fmt.Errorf("%w: the session manifest has gone, and with it what kept the parent", errclass.NotFound)
	}
	return nil
}

// replaceManifest hands the session manifest to kopia, together with the deletion of those before it.
func (s *session) replaceManifest(ctx context.Context, root *snapshot.DirEntry, state string) error {
	owner := s.w.ClientOptions().UsernameAtHost()
	id, err := snapshot.SaveSnapshot(ctx, s.w, &snapshot.Manifest{
		Source: s.q.Source.KopiaSource(), Description: "what a backup by " + owner + " has stored", IncompleteReason: engine.IncompleteReason,
		StartTime: fs.UTCTimestampFromTime(s.started), EndTime: fs.UTCTimestampFromTime(s.w.Time()), RootEntry: root, Pins: []string{engine.OwnPin},
		Tags: map[string]string{engine.TagSession: s.id, engine.TagSessionState: state, engine.TagSessionOwner: owner, engine.TagSessionDisks: s.q.diskNames()},
	})
	if err != nil {
		return err
	}
	before := s.manifests
	s.manifests = append(s.manifests[:len(before):len(before)], id)
	for _, old := range before {
		if err := engine.RemoveManifest(ctx, s.w, old); err != nil {
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
		entries, err := d.storeTables(ctx, s.w, i)
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
	if s.tree != nil {
		dir.Entries = append(dir.Entries, s.tree.entries()...)
	}
	if s.parent != nil && state == engine.SessionRunning {
		parent := *s.parent
		parent.Name = "parent"
		dir.Entries = append(dir.Entries, &parent)
	}
	id, err := snapshotfs.WriteDirManifest(ctx, s.w, "", dir, table.Compressor)
	if err != nil {
		return nil, err
	}
	return &snapshot.DirEntry{Name: "session", Type: snapshot.EntryTypeDirectory, Permissions: 0o700, ModTime: at, ObjectID: id, DirSummary: dir.Summary}, nil
}

// endManifest hands the deletion of the session manifest to kopia.
func (s *session) endManifest(ctx context.Context) error {
	for _, id := range s.manifests {
		if err := engine.RemoveManifest(ctx, s.w, id); err != nil {
			return fmt.Errorf("end the session manifest: %w", err)
		}
	}
	s.manifests = nil
	return nil
}

// endFailedSessions hands the deletion of earlier failed sessions of the same disks to kopia. The restore point that is about to be
// published has what they stored, or nobody needs it.
func (s *session) endFailedSessions(ctx context.Context) error {
	src := s.q.Source.KopiaSource()
	failed, err := snapshot.ListSnapshotManifests(ctx, s.w, &src, map[string]string{engine.TagSessionState: engine.SessionEnded, engine.TagSessionDisks: s.q.diskNames()})
	if err != nil {
		return fmt.Errorf("list earlier sessions: %w", err)
	}
	for _, id := range failed {
		if err := engine.RemoveManifest(ctx, s.w, id); err != nil {
			return fmt.Errorf("end an earlier session: %w", err)
		}
	}
	return nil
}

// keepUploads makes what was uploaded findable, as flushPeriodically does, so that the next backup does not upload it again. It
// must not be called after a restore point's manifest was handed to kopia, because the flush would store that, too. If nobody has
// cancelled the backup, nobody waits for its end: it then takes its time. failed is why the backup has failed.
func (s *session) keepUploads(failed error) {
	ctx, cancel := s.outlivingContext(max(s.q.KeepTimeout, defaultKeepTimeout), s.q.KeepTimeout)
	defer cancel()
	if errors.Is(failed, storage.ErrFull) { // The packs that could not be written would be tried again first, for half a minute.
		s.endFull(ctx)
		return
	}
	if s.work.isEmpty() && !s.tree.hasAny() {
		if s.endManifest(ctx) == nil {
			_ = s.w.Flush(ctx)
		}
		return
	}
	// Whatever ended the backup may end this, too. That costs an upload and nothing else.
	_ = s.storeManifest(ctx, engine.SessionEnded)
}

// endFull ends the session manifest where there is no room to replace it: it would otherwise count as that of a running backup, and keep
// exclusive maintenance from making room. What was uploaded is not protected any more, but is found as long as nobody needs its room.
func (s *session) endFull(ctx context.Context) {
	rep := s.r.conn.Kopia
	end := func() error {
		// The session's own writer would first store packs for which there is no room.
		return repo.DirectWriteSession(ctx, rep, repo.WriteSessionOptions{Purpose: "varve end"}, func(ctx context.Context, w repo.DirectRepositoryWriter) error {
			if err := w.Refresh(ctx); err != nil {
				return err
			}
			return engine.EachSnapshotID(ctx, w, map[string]string{engine.TagSession: s.id}, func(id manifest.ID) error {
				return engine.RemoveManifest(ctx, w, id)
			})
		})
	}
	if storage.NeedsReserve(rep.BlobReader()) {
		storage.SliceReserve(rep.BlobReader())
	}
	if err := end(); errors.Is(err, storage.ErrFull) && storage.SliceReserve(rep.BlobReader()) {
		_ = end() // It counts for SessionLive otherwise.
	}
}

// outlivingContext returns a context for what must not stop where the session is cancelled. It ends after limit, and grace after
// the session was cancelled, or after now if it was before.
func (s *session) outlivingContext(limit, grace time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), limit)
	stop := context.AfterFunc(s.ctx, func() {
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-timer.C:
			cancel()
		case <-ctx.Done():
		}
	})
	return ctx, func() {
		stop()
		cancel()
	}
}

func (s *session) closeWriter() error {
	err := errors.Join(s.w.Close(context.WithoutCancel(s.ctx)), s.r.conn.Failure())
	s.cancel(nil)
	return err
}
