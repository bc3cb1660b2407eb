package verify

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/content"
	"golang.org/x/sync/errgroup"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/reporter"
	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/internal/repository/table"
)

const (
	// sortedContents is how many contents are sorted by their place in the packs at once, in some 50 MiB of memory. Indexes have
	// them in the order of their hashes.
	sortedContents = 512 << 10
	// contentsAtOnce is how many contents one worker reads at once.
	contentsAtOnce = 32
)

// contentPass is one pass over the contents.
type contentPass struct {
	o       Options
	r       *engine.ContentReader
	rehash  func(content.ID, []byte) error
	reports *reporter.Reporter[reportedBytes]

	// mu guards what follows.
	mu     sync.Mutex
	bad    map[content.ID]error
	report *Report
}

// readContents reads a sample of all contents, each once, and returns what is wrong with the damaged ones.
func readContents(ctx context.Context, r *engine.Connection, o Options, report *Report) (map[content.ID]error, error) {
	v := &contentPass{o: o, r: r.Reader(), rehash: r.Rehasher(), bad: map[content.ID]error{}, report: report, reports: newReporter(o.Progress)}
	defer v.reports.Stop()
	var infos []content.Info
	names := map[blob.ID]blob.ID{}
	err := r.Kopia.ContentReader().IterateContents(ctx, content.IterateOptions{}, func(info content.Info) error {
		if !isSampled(info.ContentID, o.Percent, o.Sample) {
			return ctx.Err()
		}
		// Keep one string per pack, not one per content.
		if name, ok := names[info.PackBlobID]; ok {
			info.PackBlobID = name
		} else {
			names[info.PackBlobID] = info.PackBlobID
		}
		if infos = append(infos, info); len(infos) < sortedContents {
			return ctx.Err()
		}
		err := v.readSorted(ctx, infos)
		infos = infos[:0]
		return err
	})
	if err == nil {
		err = v.readSorted(ctx, infos)
	}
	if err != nil {
		return nil, fmt.Errorf("read the contents: %w", err)
	}
	return v.bad, nil
}

// readSorted reads contents in the order of their places.
func (v *contentPass) readSorted(ctx context.Context, infos []content.Info) error {
	slices.SortFunc(infos, engine.CompareLocations)
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(v.o.Workers)
	for part := range slices.Chunk(infos, contentsAtOnce) {
		if inner.Err() != nil {
			break
		}
		group.Go(func() error {
			return v.r.Contents(inner, part, func(i int, data []byte, err error) error { return v.checkContent(part[i].ContentID, data, err) })
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return ctx.Err()
}

// checkContent checks a content, or why it could not be read, and counts it.
func (v *contentPass) checkContent(id content.ID, data []byte, err error) error {
	err = checkContentHash(v.rehash, id, data, err)
	if err != nil && !errors.Is(err, errclass.Corrupt) {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if err != nil {
		v.bad[id] = err
	}
	v.report.Contents++
	v.report.Bytes += int64(len(data))
	v.reports.Report(reportedBytes{v.report.Contents, v.report.Bytes})
	return nil
}

// checkContentHash returns what is wrong with a content that was read as data, or could not be read because of err.
func checkContentHash(rehash func(content.ID, []byte) error, id content.ID, data []byte, err error) error {
	if err != nil {
		return table.WrapReadError(fmt.Sprintf("read content %s", id), err)
	}
	return rehash(id, data)
}

// CountContents counts what a verification reads with the same percentage and sample.
func CountContents(ctx context.Context, c *engine.Connection, percent float64, sample uint64) (contents, bytes int64, err error) {
	err = c.Kopia.ContentReader().IterateContents(ctx, content.IterateOptions{}, func(info content.Info) error {
		if isSampled(info.ContentID, percent, sample) {
			contents++
			bytes += int64(info.OriginalLength)
		}
		return ctx.Err()
	})
	if err != nil {
		return 0, 0, fmt.Errorf("count the contents: %w", err)
	}
	return contents, bytes, nil
}

// isSampled says whether a content is in a sample of that percentage, that is, whether its hash lies in a window of the hash space
// that begins at the sample's number.
func isSampled(id content.ID, percent float64, sample uint64) bool {
	if percent >= 100 {
		return true
	}
	from := binary.BigEndian.Uint64(id.Hash()) - sample
	return float64(from) < percent/100*math.MaxUint64
}
