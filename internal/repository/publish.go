package repository

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/kopia/kopia/fs"
	"github.com/kopia/kopia/repo/manifest"
	"github.com/kopia/kopia/repo/object"
	"github.com/kopia/kopia/snapshot"
	"github.com/kopia/kopia/snapshot/snapshotfs"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/internal/repository/table"
)

// publishTimeout bounds the flush that makes a restore point visible. A cancelled backup gives it half of Request.KeepTimeout. Nothing
// else ends that flush, because the restore point may have been stored already.
const publishTimeout = 10 * time.Minute

// publishLate is how long after publish began the restore point is no longer to be trusted. From then on others take packs that
// no index names yet, and after two weeks the session manifest.
const publishLate = 24 * time.Hour

// publishPoint makes the restore point visible. root is its directory.
func (s *session) publishPoint(p *RestorePoint, root *snapshot.DirEntry) (*RestorePoint, error) {
	began := s.w.Time()
	summary, err := p.Summarize(root.ObjectID)
	if err != nil {
		return nil, fmt.Errorf("describe the restore point: %w", err)
	}
	m := &snapshot.Manifest{
		Source: p.Source.KopiaSource(), Description: summary, StartTime: fs.UTCTimestampFromTime(p.Time), EndTime: fs.UTCTimestampFromTime(s.w.Time()),
		RootEntry: root, Tags: p.Tags(), Pins: []string{engine.OwnPin},
		Stats: snapshot.Stats{
			TotalFileCount: int32(min(root.DirSummary.TotalFileCount, math.MaxInt32)), TotalFileSize: root.DirSummary.TotalFileSize,
			TotalDirectoryCount: int32(min(root.DirSummary.TotalDirCount, math.MaxInt32)),
		},
	}
	id, err := snapshot.SaveSnapshot(s.ctx, s.w, m)
	if err == nil {
		err = errors.Join(s.endManifest(s.ctx), s.endFailedSessions(s.ctx))
	}
	if err == nil {
		err = s.ctx.Err() // The last moment at which it can be interrupted.
	}
	if err != nil {
		return nil, fmt.Errorf("store the manifest: %w", err)
	}
	engine.Reached("restore point put")
	ctx, cancel := s.outlivingContext(publishTimeout, s.q.KeepTimeout/2)
	defer cancel()
	if s.q.flushing != nil {
		s.q.flushing()
	}
	if err := s.w.Flush(ctx); err != nil {
		if err := s.checkPublished(err); err != nil {
			return nil, err
		}
	}
	engine.Reached("restore point stored")
	if s.w.Time().Sub(began) > publishLate {
		return nil, s.withdrawPoint(id)
	}
	s.progress.reportEnd()
	p.Snapshot = string(id)
	// The restore point exists, whatever fails from here on. The next refresh shows it, and maintenance stores missing records.
	_ = s.r.conn.Kopia.Refresh(ctx)
	_ = engine.PutRecord(ctx, s.w, p.ID, m)
	engine.Reached("restore point recorded")
	return p, nil
}

// withdrawPoint removes the restore point with this manifest, which was published too late.
func (s *session) withdrawPoint(id manifest.ID) error {
	ctx, cancel := s.outlivingContext(publishTimeout, s.q.KeepTimeout/2)
	defer cancel()
	err := engine.RemoveManifest(ctx, s.w, id)
	if err == nil {
		err = s.w.Flush(ctx)
	}
	if err != nil {
		return fmt.Errorf("restore point %s: %w: it was stored after more than %s, in which others may have freed what it has, and cannot be removed: %w", s.id, errclass.Unknown, publishLate, err)
	}
	return fmt.Errorf("restore point %s: %w: storing it took more than %s, in which others may have freed what it has; it was removed", s.id, errclass.Conflict, publishLate)
}

// lookTimeout bounds the search for a restore point whose flush has failed.
const lookTimeout = time.Minute

// checkPublished returns nil if the restore point exists although its flush has failed with cause. The storage's answer may have
// been lost.
func (s *session) checkPublished(cause error) error {
	ctx, cancel := s.outlivingContext(lookTimeout, s.q.KeepTimeout/2)
	defer cancel()
	err := s.r.conn.Kopia.Refresh(ctx)
	if err == nil {
		var there bool
		if there, err = engine.PointExists(ctx, s.r.conn.Kopia, s.id); there {
			return nil
		}
	}
	if err == nil {
		return fmt.Errorf("restore point %s: %w: it is not there now, and may appear if the storage still has the request: %w", s.id, errclass.Unknown, cause)
	}
	return fmt.Errorf("restore point %s: %w: %w", s.id, errclass.Unknown, errors.Join(cause, err))
}

// writeDirectory stores the restore point's directory: a file per disk, the definition of the machine, and the entry that
// describes them.
func (s *session) writeDirectory(p *RestorePoint) (*snapshot.DirEntry, error) {
	at := fs.UTCTimestampFromTime(p.Time)
	file := func(name string, bytes int64, id object.ID) *snapshot.DirEntry {
		return &snapshot.DirEntry{
			Name: name, Type: snapshot.EntryTypeFile, Permissions: 0o600, FileSize: bytes,
			ModTime: at, ObjectID: id,
		}
	}
	var definition []*snapshot.DirEntry
	if s.q.Definition != nil {
		data := engine.EncodeDefinition(p.ID, s.q.Definition)
		id, err := s.writeSmallFile(engine.DefinitionEntry, data)
		if err != nil {
			return nil, err
		}
		p.Definition = engine.NewDefinition(id, data, len(s.q.Definition))
		definition = append(definition, file(engine.DefinitionEntry, int64(len(data)), id))
		engine.Reached("definition put")
	}
	data, err := engine.EncodePoint(p)
	if err != nil {
		return nil, err
	}
	about, err := s.writeSmallFile(engine.PointEntry, data)
	if err != nil {
		return nil, err
	}
	engine.Reached("description put")
	dir := &snapshot.DirManifest{StreamType: "kopia:directory", Summary: &fs.DirectorySummary{TotalDirCount: 1, MaxModTime: at}}
	for _, d := range p.Disks {
		dir.Entries = append(dir.Entries, file(d.Name, d.Bytes, d.Object))
	}
	dir.Entries = append(dir.Entries, file(engine.PointEntry, int64(len(data)), about))
	dir.Entries = append(dir.Entries, definition...)
	if s.tree != nil {
		dir.Entries = append(dir.Entries, s.tree.attributes)
	}
	for _, e := range dir.Entries {
		dir.Summary.TotalFileCount++
		dir.Summary.TotalFileSize += e.FileSize
	}
	if s.tree != nil {
		dir.Entries = append([]*snapshot.DirEntry{s.tree.root}, dir.Entries...)
		addSummary(dir.Summary, s.tree.root.DirSummary)
	}
	id, err := snapshotfs.WriteDirManifest(s.ctx, s.w, "", dir, table.Compressor)
	if err != nil {
		return nil, err
	}
	engine.Reached("directory put")
	name := "disks"
	if s.tree != nil {
		name = "volume"
	}
	return &snapshot.DirEntry{
		Name: name, Type: snapshot.EntryTypeDirectory, Permissions: 0o700, ModTime: at, ObjectID: id, DirSummary: dir.Summary,
	}, nil
}

// writeSmallFile stores one of the files beside the disks in a restore point's directory.
func (s *session) writeSmallFile(name string, data []byte) (object.ID, error) {
	return table.WriteObject(s.ctx, s.w, data, object.WriterOptions{
		Description: "FILE:" + name, Prefix: "k", Compressor: table.Compressor, MetadataCompressor: table.Compressor,
	})
}
