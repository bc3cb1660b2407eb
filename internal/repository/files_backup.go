package repository

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"github.com/kopia/kopia/fs"
	"github.com/kopia/kopia/repo/object"
	"github.com/kopia/kopia/snapshot"

	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/internal/repository/files"
	"github.com/varvebackup/varve/internal/repository/storage"
	"github.com/varvebackup/varve/internal/repository/table"
)

// BackupFiles makes a restore point of the files in a directory: either a complete one, or none and an error. A file that cannot
// be read is an error that has its path. If the storage does not answer at the very end, the error is errclass.Unknown, and the
// restore point may exist.
//
// Sockets are left out, and counted in RestorePoint.Files. Everything else comes back: contents, holes, owners, permissions, times of
// modification to the nanosecond, extended attributes, hard links, symbolic links, pipes, devices, and names that are not UTF-8.
func (r *Repository) BackupFiles(ctx context.Context, q FilesRequest) (*RestorePoint, error) {
	common := q.request()
	if err := q.validate(&common); err != nil {
		return nil, err
	}
	if common.Time.IsZero() {
		common.Time = r.conn.Kopia.Time()
	}
	if err := r.conn.RefreshWritable(ctx); err != nil {
		return nil, fmt.Errorf("back up %s: %w", q.Source, err)
	}
	if q.ID != "" {
		if p, err := r.findPublished(ctx, &common); p != nil || err != nil {
			return p, err
		}
	}
	h, err := r.loadHistory(ctx, &common.Source)
	if err != nil {
		return nil, fmt.Errorf("read the history of %s: %w", q.Source, err)
	}
	parent, full, err := h.findFilesParent(&common, q.Identity)
	if err != nil {
		return nil, err
	}
	b := &filesBackup{q: &q, full: full, progress: newFilesProgress(q.Progress)}
	defer b.progress.reports.Stop()
	common.Progress = func(p Progress) { b.progress.setUploaded(p.UploadedBytes) }
	if b.session, err = r.newSession(ctx, &common); err != nil {
		return nil, err
	}
	defer b.session.progress.reports.Stop()
	if end := h.latestTime(); !end.Before(common.Time) {
		b.after = end.UTC()
	}
	b.tree = &sessionTree{}
	b.work.now = b.w.Time
	point, err := b.makePoint(parent)
	if closed := b.closeWriter(); point == nil {
		err = errors.Join(err, closed)
	}
	if err != nil {
		return nil, fmt.Errorf("back up %s: %w", q.Source, err)
	}
	storage.KeepReserve(r.conn.Kopia.BlobReader())
	return point, nil
}

// filesBackup is one backup of files.
type filesBackup struct {
	*session
	q        *FilesRequest
	full     FullReason
	progress *filesProgress
	done     atomic.Int64
}

// sessionTree is what a session has stored of a tree of files.
type sessionTree struct {
	mu sync.Mutex
	// root is the tree as of the last checkpoint, earlier that of an interrupted attempt, and attributes what kopia's directories have no
	// place for.
	root, earlier, attributes *snapshot.DirEntry
}

// entries returns what there is, as entries of a directory.
func (t *sessionTree) entries() (out []*snapshot.DirEntry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, e := range map[string]*snapshot.DirEntry{"earlier": t.earlier, "files": t.root, files.Name: t.attributes} {
		if e != nil {
			named := *e
			named.Name = name
			out = append(out, &named)
		}
	}
	return out
}

func (t *sessionTree) hasAny() bool { return t != nil && len(t.entries()) > 0 }

func (t *sessionTree) setRoot(root *snapshot.DirEntry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if root != nil {
		t.root = root
	}
}

// makePoint stores the tree and publishes the restore point. If it fails before that, what was uploaded is kept.
func (b *filesBackup) makePoint(parent *RestorePoint) (*RestorePoint, error) {
	existing, err := b.protectParent(parent)
	if parent != nil && existing == nil {
		b.full = FullNoParent // It was deleted in between.
	}
	var description *Files
	if err == nil {
		stop := b.flushPeriodically()
		description, err = b.storeTree(existing)
		err = errors.Join(err, stop())
	}
	var p *RestorePoint
	var root *snapshot.DirEntry
	if err == nil {
		engine.Reached("tree put")
		p, root, err = b.preparePoint(description)
	}
	if err != nil {
		b.keepUploads(err)
		return nil, b.withCause(err)
	}
	out, err := b.publishPoint(p, root)
	b.progress.reportEnd()
	return out, err
}

// preparePoint makes everything of the restore point durable except what makes it visible: see session.preparePoint.
func (b *filesBackup) preparePoint(description *Files) (*RestorePoint, *snapshot.DirEntry, error) {
	for {
		if err := b.storeManifest(b.ctx, engine.SessionRunning); err != nil {
			return nil, nil, fmt.Errorf("store the last data: %w", err)
		}
		engine.Reached("tree stored")
		if err := b.checkStoredTree(b.ctx); err != nil {
			return nil, nil, err
		}
		p := &RestorePoint{ID: b.id, Source: b.session.q.Source, Time: b.session.q.Time.UTC(), After: b.after, Group: b.q.Group, Labels: b.session.q.Labels, Disks: []Disk{}, Files: description}
		root, err := b.writeDirectory(p)
		if err != nil {
			return nil, nil, fmt.Errorf("store the restore point's directory: %w", err)
		}
		if !b.longAgo(b.stored, sessionMargin) {
			return p, root, b.r.conn.CheckNotReplaced(b.ctx)
		}
	}
}

// storeTree stores the attributes and the tree.
func (b *filesBackup) storeTree(parent *RestorePoint) (*Files, error) {
	begun := b.r.conn.Kopia.Time()
	totals, err := b.storeAttributes()
	if err != nil {
		return nil, err
	}
	if parent != nil && totals.Changed < parent.Files.Changed {
		parent, b.full = nil, FullParentLater
	}
	b.tree.earlier, err = b.findEarlier()
	if err != nil {
		return nil, err
	}
	up, err := b.upload(parent)
	if err == nil && (parent != nil || b.tree.earlier != nil) {
		var intact bool
		if intact, err = b.checkTakenOver(parent); err == nil && !intact {
			parent, b.full, b.tree.earlier = nil, FullParentDamaged, nil
			b.progress.restart()
			up, err = b.upload(nil)
		}
	}
	if err != nil {
		return nil, err
	}
	f := &Files{
		Tree: up.Root.ObjectID, Attributes: b.tree.attributes.ObjectID, Count: totals.Files, Bytes: totals.Bytes, Directories: totals.Directories,
		Symlinks: totals.Symlinks, SymlinkBytes: totals.SymlinkBytes, Specials: totals.Specials, Sockets: totals.Sockets, Identity: b.q.Identity, Changed: min(totals.Changed, begun.UnixNano()), FullReason: b.full,
		Stats: FilesStats{ReadFiles: totals.Files + totals.Symlinks - up.KeptFiles, ReadBytes: up.ReadBytes, KeptFiles: up.KeptFiles, KeptBytes: up.KeptBytes},
	}
	if parent != nil {
		f.Parent = parent.ID
	}
	return f, nil
}

// storeAttributes walks through the tree, which says how much there is to do, and stores the attributes.
func (b *filesBackup) storeAttributes() (files.Totals, error) {
	w := b.w.NewObjectWriter(b.ctx, object.WriterOptions{Description: "FILE:" + files.Name, Prefix: "k", Compressor: table.Compressor, MetadataCompressor: table.Compressor})
	defer w.Close() //nolint:errcheck // Result says what went wrong
	counted := &countingWriter{Writer: w}
	totals, err := files.Scan(b.ctx, b.q.Root, counted, b.progress.setTotals)
	if err != nil {
		return totals, fmt.Errorf("look through the files: %w", err)
	}
	id, err := w.Result()
	if err != nil {
		return totals, fmt.Errorf("store the attributes: %w", err)
	}
	b.progress.setKnown(totals)
	b.tree.mu.Lock()
	defer b.tree.mu.Unlock()
	b.tree.attributes = &snapshot.DirEntry{
		Name: files.Name, Type: snapshot.EntryTypeFile, Permissions: 0o600, FileSize: counted.bytes, ModTime: fs.UTCTimestampFromTime(b.session.q.Time), ObjectID: id,
	}
	return totals, nil
}

// findEarlier returns the tree that an interrupted attempt at the same restore point has stored, or nil.
func (b *filesBackup) findEarlier() (found *snapshot.DirEntry, err error) {
	source := b.session.q.Source.KopiaSource()
	ids, err := snapshot.ListSnapshotManifests(b.ctx, b.w, &source, map[string]string{engine.TagSession: b.id, engine.TagSessionDisks: b.session.q.diskNames()})
	if err != nil {
		return nil, fmt.Errorf("look for an interrupted attempt: %w", err)
	}
	var newest fs.UTCTimestamp
	for _, id := range ids {
		m, err := snapshot.LoadSnapshot(b.ctx, b.w, id)
		if err != nil || m.RootEntry == nil {
			continue // Then everything is read again.
		}
		var dir snapshot.DirManifest
		if engine.ReadJSON(b.ctx, b.r.conn.Reader(), m.RootEntry.ObjectID, &dir) != nil {
			continue
		}
		for _, e := range dir.Entries {
			if e.Name == "files" && m.EndTime.After(newest) {
				found, newest = e, m.EndTime
			}
		}
	}
	return found, nil
}

func (b *filesBackup) upload(parent *RestorePoint) (files.Uploaded, error) {
	var previous []*snapshot.DirEntry
	if b.tree.earlier != nil {
		previous = append(previous, b.tree.earlier)
	}
	if parent != nil {
		previous = append(previous, &snapshot.DirEntry{Name: "files", Type: snapshot.EntryTypeDirectory, ObjectID: parent.Files.Tree})
	}
	// What was read is stored even after the backup was cancelled, so that nobody has to read it again.
	ctx, cancel := b.outlivingContext(math.MaxInt64, b.session.q.KeepTimeout/2)
	defer cancel()
	up, err := files.Upload(ctx, b.ctx, b.w, b.q.Root, files.UploadOptions{
		Compressor: compressors[b.session.q.Compression], Parallel: b.session.q.Workers, Previous: previous, TrustedBefore: trustedBefore(parent),
		CheckpointEvery: 2 * b.session.q.FlushEvery, Checkpoint: b.tree.setRoot, Progress: b.addDone, Read: b.progress.addRead,
	})
	b.tree.setRoot(up.Root)
	return up, err
}

// filesPerFlush bounds what kopia keeps in memory of contents that are in no index yet.
const filesPerFlush = 50_000

// addDone notes what is done, and stores an index now and then.
func (b *filesBackup) addDone(count, bytes int64) {
	b.progress.addDone(count, bytes)
	if count > 0 && b.done.Add(count)%filesPerFlush == 0 {
		_ = b.w.Flush(b.ctx) // What fails here fails again in the end.
	}
}

// checkTakenOver says whether everything is there that was taken over. This session did not write it, so nothing else would notice
// that it is gone.
func (b *filesBackup) checkTakenOver(parent *RestorePoint) (bool, error) {
	doubt := b.tree.earlier != nil || b.w.Losses().Any()
	if parent != nil && !doubt {
		var err error
		if doubt, err = filesInDoubt(b.ctx, b.w, parent.ID); err != nil {
			return false, err
		}
	}
	if !doubt {
		return true, nil
	}
	return b.hasTree(b.ctx, b.tree.root)
}

// countingWriter counts the bytes that it passes on.
type countingWriter struct {
	object.Writer
	bytes int64
}

func (w *countingWriter) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	w.bytes += int64(n)
	return n, err
}
