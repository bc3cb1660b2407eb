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

// contentReader is what is needed of kopia to read. It is safe for concurrent use.
type contentReader interface {
	ContentInfo(ctx context.Context, id content.ID) (content.Info, error)
	GetContent(ctx context.Context, id content.ID) ([]byte, error)
}

// refreshing reads the index again before it believes that something is not there: maintenance on another machine moves contents.
type refreshing struct{ rep repo.DirectRepository }

func (f *refreshing) ContentInfo(ctx context.Context, id content.ID) (content.Info, error) {
	info, err := f.rep.ContentReader().ContentInfo(ctx, id)
	if missing(err) && f.rep.Refresh(ctx) == nil {
		return f.rep.ContentReader().ContentInfo(ctx, id)
	}
	return info, err
}

func (f *refreshing) GetContent(ctx context.Context, id content.ID) ([]byte, error) {
	data, err := f.rep.ContentReader().GetContent(ctx, id)
	if missing(err) && f.rep.Refresh(ctx) == nil {
		data, err = f.rep.ContentReader().GetContent(ctx, id)
	}
	if err != nil && ctx.Err() == nil {
		err = f.diagnose(ctx, id, err)
	}
	return data, err
}

// diagnose tells damage from a storage that does not answer: kopia's errors say what failed and not why. If the bytes can be fetched
// as the index says, they are wrong; if they are not there, the blob is too short or gone.
func (f *refreshing) diagnose(ctx context.Context, id content.ID, err error) error {
	info, lookup := f.rep.ContentReader().ContentInfo(ctx, id)
	if lookup != nil {
		return err
	}
	offset, length := int64(info.PackOffset), int64(info.PackedLength)
	var out counter
	fetch := f.rep.BlobReader().GetBlob(ctx, info.PackBlobID, offset, length, &out)
	b, look := f.rep.BlobReader().GetMetadata(ctx, info.PackBlobID)
	if fetch == nil || missing(fetch) || (look == nil && b.Length < offset+length) {
		return fmt.Errorf("%w: blob %s: %w", ErrCorrupt, info.PackBlobID, err)
	}
	return err
}

// counter is a buffer for blobs that only counts.
type counter int

func (c *counter) Write(p []byte) (int, error) { *c += counter(len(p)); return len(p), nil }
func (c *counter) Reset()                      { *c = 0 }
func (c *counter) Length() int                 { return int(*c) }

// missing says that kopia has not found what it looked for.
func missing(err error) bool {
	for _, m := range []error{content.ErrContentNotFound, object.ErrObjectNotFound, blob.ErrBlobNotFound, blob.ErrInvalidRange} {
		if errors.Is(err, m) {
			return true
		}
	}
	return false
}

// readError wraps what kopia said when it read something. What the repository should have and has not is corruption.
func readError(doing string, err error) error {
	if missing(err) && !errors.Is(err, ErrCorrupt) {
		return fmt.Errorf("%s: %w: %w", doing, ErrCorrupt, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// readBlock is the content of a block, length bytes. kopia decrypts it with authentication: what comes back is what was written.
func readBlock(ctx context.Context, r contentReader, id object.ID, length int64) ([]byte, error) {
	cid, compressed, ok := id.ContentID()
	if !ok || compressed {
		return nil, fmt.Errorf("%w: %s is not a block", ErrCorrupt, id)
	}
	data, err := r.GetContent(ctx, cid)
	if err != nil {
		return nil, readError(fmt.Sprintf("read block %s", id), err)
	}
	if int64(len(data)) != length {
		return nil, fmt.Errorf("%w: block %s has %d bytes, not %d", ErrCorrupt, id, len(data), length)
	}
	return data, nil
}
