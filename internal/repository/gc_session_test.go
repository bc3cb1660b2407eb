package repository

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/maintenance"
	"github.com/kopia/kopia/snapshot/snapshotgc"

	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/internal/repository/maintain"
)

// Varve's collection and kopia's keep what the session manifest of a running backup names, or that of one that died less than two
// weeks ago: its blocks, its tables, its parent. Older session manifests are dropped, and what they named is garbage.
func TestCollection_sessionManifests(t *testing.T) {
	t.Parallel()
	for name, collect := range map[string]func(context.Context, repo.DirectRepositoryWriter) error{
		"Varve": func(ctx context.Context, w repo.DirectRepositoryWriter) error {
			return maintain.CollectGarbage(ctx, w, maintenance.SafetyNone, w.Time())
		},
		"kopia": func(ctx context.Context, w repo.DirectRepositoryWriter) error {
			return snapshotgc.Run(ctx, w, true, maintenance.SafetyNone, w.Time())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newLongSite(t)
			// collected returns how many contents with data are in the repository after a collection and not marked as deleted.
			collected := func() (n int) {
				refresh(t, s.others)
				err := s.others.conn.Change(t.Context(), "test", func(ctx context.Context, w repo.DirectRepositoryWriter) error {
					if err := maintain.DropStaleLeases(ctx, w); err != nil {
						return err
					}
					return collect(ctx, w)
				})
				if err != nil {
					t.Error(err)
				}
				for id, gone := range deletions(t, s.others) {
					if !gone && len(id) == 32 { // Tables and directories have a prefix.
						n++
					}
				}
				return n
			}
			disk := s.disk(2)
			first, err := s.r.Backup(t.Context(), Request{Source: testSource, Disks: []DiskSource{disk.source(false)}})
			if err != nil {
				t.Fatal(err)
			}
			disk.write(s.random, extent.Extent{Length: 16 * mib}, false)
			const blocks, read = 2 * packBlocks, packBlocks / 2
			var dead atomic.Bool
			s.refusesPut = func(id blob.ID) error {
				if dead.Load() && !strings.HasPrefix(string(id), "_log") {
					return errBroken
				}
				return nil
			}
			long := newLongBackup(s.site, 40*time.Minute, read+1, 0, nil)
			d := long.source(disk, true)
			d.Changes.Exclusive = true // The first read is of what changed.
			d.Reader = &hookedReader{Reader: d.Reader, call: func(offset int64) {
				if offset != (read+1)*DefaultBlockBytes {
					return
				}
				refresh(t, s.others) // The session manifest was just stored.
				if err := s.others.Delete(t.Context(), first.ID); err != nil {
					t.Error(err)
				}
				s.move(25 * time.Hour)
				if n := collected(); n < blocks+read {
					t.Errorf("while it runs %d blocks are kept, and %d of its parent and %d of its own are named", n, blocks, read)
				}
				dead.Store(true)
			}}
			if _, err := long.backUp(t.Context(), s.r, Request{Source: testSource, Disks: []DiskSource{d}}); !errors.Is(err, errBroken) {
				t.Errorf("it did not die: %v", err)
			}
			dead.Store(false)
			s.move(engine.SessionLife - 26*time.Hour)
			if n := collected(); n < blocks+read {
				t.Errorf("less than two weeks later %d blocks are kept", n)
			}
			s.move(3 * time.Hour)
			if n := collected(); n > 0 {
				t.Errorf("more than two weeks later %d blocks are kept", n)
			}
		})
	}
}
