package files

import (
	"context"

	"github.com/kopia/kopia/snapshot"
	"golang.org/x/sync/errgroup"

	"github.com/varvebackup/varve/internal/repository/table"
)

// Visitor is what Walk calls, from several goroutines.
type Visitor struct {
	// Visit is called with everything in the tree, and with the directory that it is in. It says whether to read a directory.
	Visit func(ctx context.Context, dir string, e *snapshot.DirEntry) (enter bool, err error)
	// Unreadable is called with a directory that could not be read, and says whether that ends the walk.
	Unreadable func(path string, e *snapshot.DirEntry, err error) error
}

// Walk walks through a tree in the repository, parallel directories at once. It keeps no more than these in memory.
func Walk(ctx context.Context, cr table.ContentReader, root *snapshot.DirEntry, parallel int, v Visitor) error {
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(max(parallel, 1))
	w := walker{Visitor: v, r: cr, group: group}
	group.Go(func() error {
		enter, err := v.Visit(inner, "", root)
		if err != nil || !enter {
			return err
		}
		return w.walkDir(inner, rootPath, root)
	})
	return group.Wait()
}

type walker struct {
	Visitor
	r     table.ContentReader
	group *errgroup.Group
}

func (w *walker) walkDir(ctx context.Context, path string, dir *snapshot.DirEntry) error {
	visiting := false
	err := EachEntry(ctx, w.r, dir.ObjectID, func(e *snapshot.DirEntry) error {
		visiting = true
		enter, err := w.Visit(ctx, path, e)
		if err == nil && enter && isDir(e) {
			below := joinPath(path, e.Name)
			if !w.group.TryGo(func() error { return w.walkDir(ctx, below, e) }) {
				err = w.walkDir(ctx, below, e)
			}
		}
		visiting = err != nil
		return err
	})
	if err == nil || visiting || ctx.Err() != nil {
		return err
	}
	return w.Unreadable(path, dir, err)
}
