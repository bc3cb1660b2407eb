package repository

import (
	"context"
	"errors"
	"fmt"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/object"
)

// contentReader is what reading needs of kopia. It is safe for concurrent use.
type contentReader interface {
	ContentInfo(ctx context.Context, id content.ID) (content.Info, error)
	GetContent(ctx context.Context, id content.ID) ([]byte, error)
}

// refreshing reads the index again before it believes that something is missing, because maintenance on another machine moves
// contents.
type refreshing struct {
	rep repo.DirectRepository
	// direct is nil if kopia reads everything.
	direct *direct
	// cached says that kopia reads single contents, because it has a cache of them.
	cached bool
}

func (f *refreshing) ContentInfo(ctx context.Context, id content.ID) (content.Info, error) {
	info, err := f.rep.ContentReader().ContentInfo(ctx, id)
	if missing(err) && f.rep.Refresh(ctx) == nil {
		return f.rep.ContentReader().ContentInfo(ctx, id)
	}
	return info, err
}

func (f *refreshing) GetContent(ctx context.Context, id content.ID) ([]byte, error) {
	if f.direct != nil && !f.cached {
		if info, err := f.rep.ContentReader().ContentInfo(ctx, id); err == nil {
			if data, ok := f.direct.content(ctx, info); ok {
				return data, nil
			}
		}
	}
	return f.slowly(ctx, id)
}

// slowly reads a content with kopia, which also says what is wrong with it.
func (f *refreshing) slowly(ctx context.Context, id content.ID) ([]byte, error) {
	data, err := f.rep.ContentReader().GetContent(ctx, id)
	if missing(err) && f.rep.Refresh(ctx) == nil {
		data, err = f.rep.ContentReader().GetContent(ctx, id)
	}
	for attempt := 1; err != nil && ctx.Err() == nil; attempt++ {
		fetched, wrong := f.diagnose(ctx, id, err)
		if !fetched || attempt == readAttempts {
			return nil, wrong
		}
		// The storage may have failed then, but not now.
		data, err = f.rep.ContentReader().GetContent(ctx, id)
	}
	return data, err
}

// readAttempts is how often kopia has to fail to read a content, although its bytes can be fetched each time, for the content to
// count as damaged.
const readAttempts = 3

// Contents calls take with each of the contents, or with what was wrong with it, in order, until take returns an error. The data
// is valid until take returns. Adjacent contents in a pack are fetched together, past the cache.
func (f *refreshing) Contents(ctx context.Context, infos []content.Info, take func(i int, data []byte, err error) error) error {
	for done := 0; done < len(infos); {
		end := done + 1
		for end < len(infos) && f.direct.follows(&infos[done], &infos[end-1], &infos[end]) {
			end++
		}
		n, err := f.direct.run(ctx, infos[done:end], func(i int, data []byte) error { return take(done+i, data, nil) })
		if err != nil {
			return err
		}
		if done += n; done == end {
			continue
		}
		data, wrong := f.slowly(ctx, infos[done].ContentID)
		if err := take(done, data, wrong); err != nil {
			return err
		}
		done++
	}
	return nil
}

// place returns where the index has a content. If the index does not have it, only the ID is set.
func (f *refreshing) place(ctx context.Context, id content.ID) content.Info {
	info, err := f.rep.ContentReader().ContentInfo(ctx, id)
	if err != nil {
		return content.Info{ContentID: id}
	}
	return info
}

// diagnose distinguishes damage from a storage that does not answer, because kopia's errors say what failed and not why. If the
// bytes can be fetched where the index says, they are wrong, or the storage answers again. If they are not there, the blob is too
// short or gone.
func (f *refreshing) diagnose(ctx context.Context, id content.ID, err error) (fetched bool, wrong error) {
	info, lookup := f.rep.ContentReader().ContentInfo(ctx, id)
	if lookup != nil {
		return false, err
	}
	offset, length := int64(info.PackOffset), int64(info.PackedLength)
	var out counter
	fetch := f.rep.BlobReader().GetBlob(ctx, info.PackBlobID, offset, length, &out)
	b, look := f.rep.BlobReader().GetMetadata(ctx, info.PackBlobID)
	if fetch == nil || missing(fetch) || (look == nil && b.Length < offset+length) {
		return fetch == nil, fmt.Errorf("%w: blob %s: %w", ErrCorrupt, info.PackBlobID, err)
	}
	return false, err
}

// counter is a buffer for blobs that only counts.
type counter int

func (c *counter) Write(p []byte) (int, error) { *c += counter(len(p)); return len(p), nil }
func (c *counter) Reset()                      { *c = 0 }
func (c *counter) Length() int                 { return int(*c) }

// missing says whether err means that kopia did not find what it looked for.
func missing(err error) bool {
	for _, m := range []error{content.ErrContentNotFound, object.ErrObjectNotFound, blob.ErrBlobNotFound, blob.ErrInvalidRange} {
		if errors.Is(err, m) {
			return true
		}
	}
	return false
}

// readError wraps an error that kopia returned when it read something. If the repository lacks what it should have, that is
// corruption.
func readError(doing string, err error) error {
	if missing(err) && !errors.Is(err, ErrCorrupt) {
		return fmt.Errorf("%s: %w: %w", doing, ErrCorrupt, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// blockID returns the content that a block consists of.
func blockID(id object.ID) (content.ID, error) {
	cid, compressed, ok := id.ContentID()
	if !ok || compressed {
		return content.EmptyID, fmt.Errorf("%w: %s is not a block", ErrCorrupt, id)
	}
	return cid, nil
}

// blockRead says whether data, which was read for a block of length bytes, is that block. kopia decrypts it with authentication,
// so what comes back is what was written.
func blockRead(id object.ID, length int64, data []byte, err error) error {
	if err != nil {
		return readError(fmt.Sprintf("read block %s", id), err)
	}
	if int64(len(data)) != length {
		return fmt.Errorf("%w: block %s has %d bytes, not %d", ErrCorrupt, id, len(data), length)
	}
	return nil
}

// readBlock returns the content of a block of length bytes.
func readBlock(ctx context.Context, r contentReader, id object.ID, length int64) ([]byte, error) {
	cid, err := blockID(id)
	if err != nil {
		return nil, err
	}
	data, err := r.GetContent(ctx, cid)
	if err := blockRead(id, length, data, err); err != nil {
		return nil, err
	}
	return data, nil
}
