package repository

import (
	"context"
	"errors"
	"fmt"

	"github.com/kopia/kopia/snapshot"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/internal/repository/files"
)

// RestoreFiles writes the files of a restore point into a directory. What is written was authenticated when it was read. When
// RestoreFiles returns nil everything is durable. If it fails, or this process dies, the next call with the same request
// continues: it does not write complete files again. It holds a lease on the restore point, unless the connection is read-only.
//
// A restore point without files is errclass.Invalid. What the file system or this process's privileges cannot take, such as a
// device or an attribute of a namespace, is an error.
func (r *Repository) RestoreFiles(ctx context.Context, q FilesRestoreRequest) error {
	p, err := r.Get(ctx, q.ID)
	if err != nil {
		return err
	}
	if p.Files == nil {
		return fmt.Errorf("%w: restore point %s has disks and no files", errclass.Invalid, q.ID)
	}
	release, err := r.conn.Reader().Hold()
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var lease *Lease
	if !r.ReadOnly() {
		if lease, err = r.Lease(ctx, q.ID, cancel); err != nil {
			return err
		}
	}
	err = r.restoreFiles(ctx, p, &q)
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(err, cause) {
		err = errors.Join(cause, err)
	}
	if lease != nil {
		err = errors.Join(err, lease.Release())
	}
	if err != nil {
		return fmt.Errorf("restore the files of restore point %s: %w", q.ID, err)
	}
	return nil
}

func (r *Repository) restoreFiles(ctx context.Context, p *RestorePoint, q *FilesRestoreRequest) error {
	root, err := r.filesRoot(ctx, p)
	if err != nil {
		return err
	}
	progress := newFilesProgress(q.Progress)
	defer progress.reports.Stop()
	progress.change(func(s *FilesProgress) {
		s.TotalFiles, s.TotalBytes, s.TotalKnown = p.Files.Count+p.Files.Symlinks, p.Files.Bytes+p.Files.SymlinkBytes, true
	})
	err = files.Restore(ctx, r.conn.Reader(), q.Directory, files.RestoreOptions{
		ID: p.ID, Root: root, Attributes: p.Files.Attributes, Parallel: q.parallel(),
		Progress: func(count, bytes, written int64) {
			progress.addDone(count, bytes)
			progress.addRead(written)
		},
	})
	if err == nil {
		progress.reportEnd()
	}
	return err
}

// filesRoot returns the entry of the tree in the restore point's directory.
func (r *Repository) filesRoot(ctx context.Context, p *RestorePoint) (*snapshot.DirEntry, error) {
	root, err := engine.PointRoot(ctx, r.conn.Kopia, p)
	if err != nil || root == nil {
		return nil, errors.Join(err, errclass.NotFound)
	}
	var dir snapshot.DirManifest
	if err := engine.ReadJSON(ctx, r.conn.Reader(), root.ObjectID, &dir); err != nil {
		return nil, err
	}
	for _, e := range dir.Entries {
		if e.Type == snapshot.EntryTypeDirectory && e.ObjectID == p.Files.Tree {
			return e, nil
		}
	}
	return nil, fmt.Errorf("%w: the directory of restore point %s has no tree", errclass.Corrupt, p.ID)
}
