package engine

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/content"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/table"
)

// ContentReader reads the index again before it believes that something is missing, because maintenance on another machine moves
// contents.
type ContentReader struct {
	rep repo.DirectRepository
	// direct is nil if kopia reads everything.
	direct *directReader
	// cached says that kopia reads single contents, because it has a cache of them.
	cached bool
	// dropCache empties the cache, once; it returns false otherwise.
	dropCache func() bool
	lifetime  *lifetime
}

// Hold keeps the connection open until release is called, once, also if it is closed meanwhile. It fails once the connection is closed.
func (f *ContentReader) Hold() (release func(), err error) { return f.lifetime.join() }

// ContentInfo implements table.ContentReader.
func (f *ContentReader) ContentInfo(ctx context.Context, id content.ID) (content.Info, error) {
	info, err := f.rep.ContentReader().ContentInfo(ctx, id)
	if table.IsMissing(err) && f.rep.Refresh(ctx) == nil {
		return f.rep.ContentReader().ContentInfo(ctx, id)
	}
	return info, err
}

// GetContent implements table.ContentReader.
func (f *ContentReader) GetContent(ctx context.Context, id content.ID) ([]byte, error) {
	if f.direct != nil && !f.cached {
		if info, err := f.rep.ContentReader().ContentInfo(ctx, id); err == nil {
			if data, ok := f.direct.readContent(ctx, info); ok {
				return data, nil
			}
		}
	}
	return f.readWithKopia(ctx, id)
}

// readWithKopia reads a content with kopia, which also says what is wrong with it.
func (f *ContentReader) readWithKopia(ctx context.Context, id content.ID) ([]byte, error) {
	data, err := f.rep.ContentReader().GetContent(ctx, id)
	if table.IsMissing(err) && f.rep.Refresh(ctx) == nil {
		data, err = f.rep.ContentReader().GetContent(ctx, id)
	}
	for attempt := 1; err != nil && ctx.Err() == nil; attempt++ {
		fetched, wrong := f.diagnoseReadError(ctx, id, err)
		if fetched && f.cached {
			if data, ok := f.readPastCache(ctx, id); ok {
				return data, nil
			}
		}
		if !fetched || attempt == readAttempts {
			return nil, wrong
		}
		// The storage may have failed then, but not now.
		data, err = f.rep.ContentReader().GetContent(ctx, id)
	}
	return data, err
}

// readPastCache reads a content that kopia cannot read with the cache. If the cache may be the reason, it is emptied.
func (f *ContentReader) readPastCache(ctx context.Context, id content.ID) ([]byte, bool) {
	if f.direct == nil {
		if !f.dropCache() {
			return nil, false
		}
		data, err := f.rep.ContentReader().GetContent(ctx, id)
		return data, err == nil
	}
	info, err := f.rep.ContentReader().ContentInfo(ctx, id)
	if err != nil {
		return nil, false
	}
	data, ok := f.direct.readContent(ctx, info)
	if ok {
		f.dropCache()
	}
	return data, ok
}

// readAttempts is how often kopia has to fail to read a content, although its bytes can be fetched each time, for the content to
// count as damaged.
const readAttempts = 3

// Contents calls take with each of the contents, or with what was wrong with it, in order, until take returns an error. The data
// is valid until take returns. Adjacent contents in a pack are fetched together, past the cache.
func (f *ContentReader) Contents(ctx context.Context, infos []content.Info, take func(i int, data []byte, err error) error) error {
	for done := 0; done < len(infos); {
		end := done + 1
		for end < len(infos) && f.FetchedTogether(&infos[done], &infos[end-1], &infos[end]) {
			end++
		}
		n, err := f.direct.readRun(ctx, infos[done:end], func(i int, data []byte) error { return take(done+i, data, nil) })
		if err != nil {
			return err
		}
		if done += n; done == end {
			continue
		}
		data, wrong := f.readWithKopia(ctx, infos[done].ContentID)
		if err := take(done, data, wrong); err != nil {
			return err
		}
		done++
	}
	return nil
}

// FetchedTogether says whether b is fetched with a, in the run that began at start.
func (f *ContentReader) FetchedTogether(start, a, b *content.Info) bool {
	return f.direct.extendsRun(start, a, b)
}

// CompareLocations orders contents as they lie in the packs.
func CompareLocations(a, b content.Info) int {
	return cmp.Or(strings.Compare(string(a.PackBlobID), string(b.PackBlobID)), cmp.Compare(a.PackOffset, b.PackOffset))
}

// Locate returns where the index has a content. If the index does not have it, only the ID is set.
func (f *ContentReader) Locate(ctx context.Context, id content.ID) content.Info {
	info, err := f.rep.ContentReader().ContentInfo(ctx, id)
	if err != nil {
		return content.Info{ContentID: id}
	}
	return info
}

// diagnoseReadError distinguishes damage from a storage that does not answer, because kopia's errors say what failed and not why. If the
// bytes can be fetched where the index says, they are wrong, or the storage answers again. If they are not there, the blob is too
// short or gone.
func (f *ContentReader) diagnoseReadError(ctx context.Context, id content.ID, err error) (fetched bool, wrong error) {
	info, lookup := f.rep.ContentReader().ContentInfo(ctx, id)
	if lookup != nil {
		return false, err
	}
	offset, length := int64(info.PackOffset), int64(info.PackedLength)
	var out countingBuffer
	fetch := f.rep.BlobReader().GetBlob(ctx, info.PackBlobID, offset, length, &out)
	b, look := f.rep.BlobReader().GetMetadata(ctx, info.PackBlobID)
	if fetch == nil || table.IsMissing(fetch) || (look == nil && b.Length < offset+length) {
		return fetch == nil, fmt.Errorf("%w: blob %s: %w", errclass.Corrupt, info.PackBlobID, err)
	}
	return false, err
}

// countingBuffer is a buffer for blobs that only counts.
type countingBuffer int

func (c *countingBuffer) Write(p []byte) (int, error) {
	*c += countingBuffer(len(p))
	return len(p), nil
}
func (c *countingBuffer) Reset()      { *c = 0 }
func (c *countingBuffer) Length() int { return int(*c) }
