package repository

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/kopia/kopia/repo/blob"
)

// requestCounter counts the requests to a storage by kind.
type requestCounter struct{ gets, heads, lists, puts atomic.Int64 }

// cost is how many requests something took.
type cost struct{ gets, heads, lists, puts int64 }

func (c cost) String() string {
	return fmt.Sprintf("%d GETs, %d HEADs, %d LISTs, %d PUTs", c.gets, c.heads, c.lists, c.puts)
}

func (r *requestCounter) now() cost {
	return cost{gets: r.gets.Load(), heads: r.heads.Load(), lists: r.lists.Load(), puts: r.puts.Load()}
}

// costOf counts the requests that do makes.
func (s *site) costOf(tb testing.TB, do func() error) cost {
	tb.Helper()
	before := s.requests.now()
	if err := do(); err != nil {
		tb.Fatal(err)
	}
	after := s.requests.now()
	return cost{
		gets: after.gets - before.gets, heads: after.heads - before.heads,
		lists: after.lists - before.lists, puts: after.puts - before.puts,
	}
}

func (s *siteStorage) ListBlobs(ctx context.Context, prefix blob.ID, call func(blob.Metadata) error) error {
	if err := s.site.answer(ctx, prefix); err != nil {
		return err
	}
	s.site.requests.lists.Add(1)
	if unlisted := s.site.unlisted.Load(); unlisted != nil {
		if err := (*unlisted)(prefix); err != nil {
			return err
		}
	}
	if s.site.lists != nil {
		if err := s.site.lists(); err != nil {
			return err
		}
	}
	return s.Storage.ListBlobs(ctx, prefix, call)
}
