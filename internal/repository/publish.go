package repository

import (
	"errors"
	"fmt"
	"time"

	"github.com/kopia/kopia/fs"
	"github.com/kopia/kopia/repo/object"
	"github.com/kopia/kopia/snapshot"
	"github.com/kopia/kopia/snapshot/snapshotfs"
)

// checkpoint stores what was written so far every now and then, so that a later backup finds it if this one dies. The returned
// function ends that.
func (s *session) checkpoint() (stop func() error) {
	done, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ticker := time.NewTicker(s.q.CheckpointEvery)
		defer ticker.Stop()
		for {
			select {
			case <-done:
				ended <- nil
				return
			case <-ticker.C:
				reached("checkpoint due")
				if err := errors.Join(s.lease.renew(), s.w.Flush(s.ctx)); err != nil {
					ended <- fmt.Errorf("checkpoint: %w", err)
					return
				}
				reached("checkpoint stored")
			}
		}
	}()
	return func() error {
		close(done)
		return <-ended
	}
}

// publish makes the restore point visible.
func (s *session) publish(p *RestorePoint) (*RestorePoint, error) {
	p.ID = newID()
	root, err := s.directory(p)
	if err != nil {
		return nil, fmt.Errorf("store the restore point's directory: %w", err)
	}
	m := &snapshot.Manifest{
		Source: p.Source.info(), StartTime: fs.UTCTimestampFromTime(p.Time), EndTime: fs.UTCTimestampFromTime(s.w.Time()),
		RootEntry: root, Tags: map[string]string{tagFormat: formatTag, tagID: p.ID},
		Stats: snapshot.Stats{TotalFileCount: int32(len(p.Disks)), TotalFileSize: root.DirSummary.TotalFileSize, TotalDirectoryCount: 1},
	}
	if _, err := snapshot.SaveSnapshot(s.ctx, s.w, m); err != nil {
		return nil, fmt.Errorf("store the manifest: %w", err)
	}
	reached("restore point put")
	// One flush for the manifest and the end of the lease.
	if s.lease != nil {
		err = s.lease.release()
	} else {
		err = s.w.Flush(s.ctx)
	}
	if err := errors.Join(err, s.r.rep.Refresh(s.ctx)); err != nil {
		return nil, fmt.Errorf("store the manifest: %w", err)
	}
	reached("restore point stored")
	s.progress.end()
	p.Snapshot = string(m.ID)
	// The restore point is there, with or without its record. Maintenance stores those that are missing.
	_ = putRecord(s.ctx, s.w, p.ID, m)
	reached("restore point recorded")
	return p, nil
}

// directory stores the restore point's directory: a file a disk, and the entry that describes them.
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
