package repository

import (
	"context"
	"errors"
	"fmt"

	"github.com/kopia/kopia/fs"
	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/object"
	"github.com/kopia/kopia/snapshot"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/files"
	"github.com/varvebackup/varve/internal/repository/table"
	"github.com/varvebackup/varve/internal/repository/verify"
)

func filesInDoubt(ctx context.Context, w repo.DirectRepositoryWriter, parentID string) (bool, error) {
	return verify.ClonesInDoubt(ctx, w, parentID)
}

// errGone ends a search early.
var errGone = errors.New("a content is gone")

// hasTree says whether the index has everything of a tree, and nothing of it is marked as deleted or lost.
func (s *session) hasTree(ctx context.Context, root *snapshot.DirEntry) (bool, error) {
	err := s.eachTreeContent(ctx, root, func(ctx context.Context, id content.ID) error {
		err := verify.CheckContents(ctx, s.w.Intact(), object.DirectObjectID(id))
		if errors.Is(err, errclass.Corrupt) {
			return errGone
		}
		return err
	})
	if errors.Is(err, errGone) || errors.Is(err, errclass.Corrupt) {
		return false, nil
	}
	return err == nil, err
}

// checkTree checks that everything of these trees and objects is there to stay. It takes marks of deletion back. If something is
// gone, only another backup helps: errclass.Conflict.
func (c *contentChecker) checkTree(ctx context.Context, entries []*snapshot.DirEntry) error {
	for _, e := range entries {
		err := c.s.eachTreeContent(ctx, e, func(ctx context.Context, id content.ID) error {
			there, err := c.checkContent(ctx, id)
			if err == nil && !there {
				err = errGone
			}
			return err
		})
		if errors.Is(err, errGone) || errors.Is(err, errclass.Corrupt) {
			return c.s.errStoredIsGone()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// errStoredIsGone says that a backup of files has to be repeated.
func (s *session) errStoredIsGone() error {
	if l := s.w.Losses(); l.Any() {
		return fmt.Errorf("%w: some of what this backup has stored or found is gone: %s: back up again", errclass.Conflict, l.Describe())
	}
	return fmt.Errorf("%w: some of what this backup has stored is gone, because it was interrupted for hours: back up again", errclass.Conflict)
}

// checkStoredTree looks for what has been lost since the session began, in everything that the restore point is about to refer to. What is
// gone cannot be stored again without the file that it is from.
func (s *session) checkStoredTree(ctx context.Context) error {
	if err := s.findLatestLosses(ctx); err != nil || !s.w.Unchecked() {
		return err
	}
	s.w.Checked()
	c := &contentChecker{s}
	if err := c.checkTree(ctx, s.tree.entries()); err != nil {
		return err
	}
	return s.w.Flush(ctx)
}

// eachTreeContent calls call with each content of a tree, or of a single object, from several goroutines.
func (s *session) eachTreeContent(ctx context.Context, root *snapshot.DirEntry, call func(context.Context, content.ID) error) error {
	r := s.w.ContentReader()
	return files.Walk(ctx, r, root, s.q.Workers, files.Visitor{
		Visit: func(ctx context.Context, _ string, e *snapshot.DirEntry) (bool, error) {
			err := table.EachContent(ctx, r, e.ObjectID, func(id content.ID) error { return call(ctx, id) })
			return err == nil && e.Type == snapshot.EntryTypeDirectory, err
		},
		Unreadable: func(_ string, _ *snapshot.DirEntry, err error) error { return err },
	})
}

// addSummary adds what is in a directory to the summary of the one above.
func addSummary(to, s *fs.DirectorySummary) {
	if s == nil {
		return
	}
	to.TotalFileCount += s.TotalFileCount
	to.TotalFileSize += s.TotalFileSize
	to.TotalDirCount += s.TotalDirCount
	to.TotalSymlinkCount += s.TotalSymlinkCount
}
