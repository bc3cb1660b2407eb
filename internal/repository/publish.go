package repository

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kopia/kopia/fs"
	"github.com/kopia/kopia/repo/manifest"
	"github.com/kopia/kopia/repo/object"
	"github.com/kopia/kopia/snapshot"
	"github.com/kopia/kopia/snapshot/snapshotfs"
)

// publishTimeout bounds the flush that makes a restore point visible. Nothing else ends that flush, because the restore point may
// have been stored already.
const publishTimeout = 10 * time.Minute

// publishLate is how long after publish began the restore point is no longer to be trusted. From then on others take packs that
// no index names yet, and after two weeks the session manifest.
const publishLate = 24 * time.Hour

// publish makes the restore point visible. root is its directory.
func (s *session) publish(p *RestorePoint, root *snapshot.DirEntry) (*RestorePoint, error) {
	began := s.w.Time()
	summary, err := p.summarize(root.ObjectID)
	if err != nil {
		return nil, fmt.Errorf("describe the restore point: %w", err)
	}
	m := &snapshot.Manifest{
		Source: p.Source.info(), Description: summary, StartTime: fs.UTCTimestampFromTime(p.Time), EndTime: fs.UTCTimestampFromTime(s.w.Time()),
		RootEntry: root, Tags: map[string]string{tagFormat: formatTag, tagID: p.ID}, Pins: []string{kopiaPin},
		Stats: snapshot.Stats{TotalFileCount: int32(len(p.Disks)), TotalFileSize: root.DirSummary.TotalFileSize, TotalDirectoryCount: 1},
	}
	id, err := snapshot.SaveSnapshot(s.ctx, s.w, m)
	if err == nil {
		err = errors.Join(s.end(s.ctx), s.endFailed(s.ctx))
	}
	if err == nil {
		err = s.ctx.Err() // The last moment at which it can be interrupted.
	}
	if err != nil {
		return nil, fmt.Errorf("store the manifest: %w", err)
	}
	reached("restore point put")
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), publishTimeout)
	defer cancel()
	if s.q.flushing != nil {
		s.q.flushing()
	}
	if err := s.w.Flush(ctx); err != nil {
		if err := s.lookAgain(err); err != nil {
			return nil, err
		}
	}
	reached("restore point stored")
	if s.w.Time().Sub(began) > publishLate {
		return nil, s.takeBack(id)
	}
	s.progress.end()
	p.Snapshot = string(id)
	// The restore point exists, whatever fails from here on. The next refresh shows it, and maintenance stores missing records.
	_ = s.r.rep.Refresh(ctx)
	_ = putRecord(ctx, s.w, p.ID, m)
	reached("restore point recorded")
	return p, nil
}

// takeBack removes the restore point with this manifest, which was published too late.
func (s *session) takeBack(id manifest.ID) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), publishTimeout)
	defer cancel()
	err := removeManifest(ctx, s.w, id)
	if err == nil {
		err = s.w.Flush(ctx)
	}
	if err != nil {
		return fmt.Errorf("restore point %s: %w: it was stored after more than %s, in which others may have freed what it has, and cannot be removed: %w", s.id, ErrUnknown, publishLate, err)
	}
	return fmt.Errorf("restore point %s: %w: storing it took more than %s, in which others may have freed what it has; it was removed", s.id, ErrConflict, publishLate)
}

// lookTimeout bounds the search for a restore point whose flush has failed.
const lookTimeout = time.Minute

// lookAgain returns nil if the restore point exists although its flush has failed with cause. The storage's answer may have been
// lost.
func (s *session) lookAgain(cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), lookTimeout)
	defer cancel()
	err := s.r.rep.Refresh(ctx)
	if err == nil {
		var found []entry
		if found, err = find(ctx, s.r.rep, nil, s.id); err == nil && len(found) > 0 {
			return nil
		}
	}
	if err == nil {
		return fmt.Errorf("restore point %s: %w: it is not there now, and may appear if the storage still has the request: %w", s.id, ErrUnknown, cause)
	}
	return fmt.Errorf("restore point %s: %w: %w", s.id, ErrUnknown, errors.Join(cause, err))
}

// directory stores the restore point's directory: a file per disk, and the entry that describes them.
func (s *session) directory(p *RestorePoint) (*snapshot.DirEntry, error) {
	data, err := encodePoint(p)
	if err != nil {
		return nil, err
	}
	about, err := writeObject(s.ctx, s.w, data, object.WriterOptions{Description: "FILE:" + pointEntry, Prefix: "k", Compressor: tableCompressor, MetadataCompressor: tableCompressor})
	if err != nil {
		return nil, err
	}
	reached("description put")
	at := fs.UTCTimestampFromTime(p.Time)
	file := func(name string, bytes int64, id object.ID) *snapshot.DirEntry {
		return &snapshot.DirEntry{Name: name, Type: snapshot.EntryTypeFile, Permissions: 0o600, FileSize: bytes, ModTime: at, ObjectID: id}
	}
	dir := &snapshot.DirManifest{StreamType: "kopia:directory", Summary: &fs.DirectorySummary{TotalDirCount: 1, MaxModTime: at}}
	for _, d := range p.Disks {
		dir.Entries = append(dir.Entries, file(d.Name, d.Bytes, d.Object))
	}
	dir.Entries = append(dir.Entries, file(pointEntry, int64(len(data)), about))
	for _, e := range dir.Entries {
		dir.Summary.TotalFileCount++
		dir.Summary.TotalFileSize += e.FileSize
	}
	id, err := snapshotfs.WriteDirManifest(s.ctx, s.w, "", dir, tableCompressor)
	if err != nil {
		return nil, err
	}
	reached("directory put")
	return &snapshot.DirEntry{
		Name: "disks", Type: snapshot.EntryTypeDirectory, Permissions: 0o700, ModTime: at, ObjectID: id, DirSummary: dir.Summary,
	}, nil
}
