package table

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/object"
	"golang.org/x/sync/errgroup"

	"github.com/varvebackup/varve/internal/errclass"
)

// ContentReader is what reading needs of kopia. It is safe for concurrent use.
type ContentReader interface {
	ContentInfo(ctx context.Context, id content.ID) (content.Info, error)
	GetContent(ctx context.Context, id content.ID) ([]byte, error)
}

// IsMissing says whether err means that kopia did not find what it looked for.
func IsMissing(err error) bool {
	for _, m := range []error{content.ErrContentNotFound, object.ErrObjectNotFound, blob.ErrBlobNotFound, blob.ErrInvalidRange} {
		if errors.Is(err, m) {
			return true
		}
	}
	return false
}

// WrapReadError wraps an error that kopia returned when it read something. If the repository lacks what it should have, that is
// corruption.
func WrapReadError(doing string, err error) error {
	if IsMissing(err) && !errors.Is(err, errclass.Corrupt) {
		return fmt.Errorf("%s: %w: %w", doing, errclass.Corrupt, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// BlockContent returns the content that a block consists of.
func BlockContent(id object.ID) (content.ID, error) {
	cid, compressed, ok := id.ContentID()
	if !ok || compressed {
		return content.EmptyID, fmt.Errorf("%w: %s is not a block", errclass.Corrupt, id)
	}
	return cid, nil
}

// CheckBlock says whether data, which was read for a block of length bytes, is that block. kopia decrypts it with authentication,
// so what comes back is what was written.
func CheckBlock(id object.ID, length int64, data []byte, err error) error {
	if err != nil {
		return WrapReadError(fmt.Sprintf("read block %s", id), err)
	}
	if int64(len(data)) != length {
		return fmt.Errorf("%w: block %s has %d bytes, not %d", errclass.Corrupt, id, len(data), length)
	}
	return nil
}

// ReadBlock returns the content of a block of length bytes.
func ReadBlock(ctx context.Context, r ContentReader, id object.ID, length int64) ([]byte, error) {
	cid, err := BlockContent(id)
	if err != nil {
		return nil, err
	}
	data, err := r.GetContent(ctx, cid)
	if err := CheckBlock(id, length, data, err); err != nil {
		return nil, err
	}
	return data, nil
}

// OpenObject opens an object for reading a part at a time.
func OpenObject(ctx context.Context, cr ContentReader, id object.ID) (object.Reader, error) {
	or, err := object.Open(ctx, objectContents{cr}, id)
	if err != nil {
		return nil, WrapReadError(fmt.Sprintf("open object %s", id), err)
	}
	return or, nil
}

// ReadObject reads an object that must have no more than limit bytes.
func ReadObject(ctx context.Context, cr ContentReader, id object.ID, limit int64) ([]byte, error) {
	or, err := OpenObject(ctx, cr, id)
	if err != nil {
		return nil, err
	}
	defer or.Close() //nolint:errcheck // it only reads
	if or.Length() > limit {
		return nil, fmt.Errorf("%w: object %s has %d bytes", errclass.Corrupt, id, or.Length())
	}
	data, err := io.ReadAll(or)
	if err != nil {
		return nil, WrapReadError(fmt.Sprintf("read object %s", id), err)
	}
	return data, nil
}

// objectContents reads contents in the way that kopia's object package wants.
type objectContents struct{ ContentReader }

// PrefetchContents does nothing, because all callers read in parallel.
func (objectContents) PrefetchContents(context.Context, []content.ID, string) []content.ID {
	return nil
}

// ReadShortObject returns the content of a short object, which is mostly one content. It reads the contents of a longer one in
// parallel.
func ReadShortObject(ctx context.Context, r ContentReader, id object.ID) ([]byte, error) {
	if cid, compressed, ok := id.ContentID(); ok && !compressed {
		return r.GetContent(ctx, cid)
	}
	inner, ok := id.IndexObjectID()
	if !ok {
		return readForeignObject(ctx, r, id)
	}
	data, err := ReadShortObject(ctx, r, inner)
	if err != nil {
		return nil, err
	}
	pieces, err := Decode(data)
	if err != nil {
		return nil, fmt.Errorf("%w: table %s: %w", errclass.Corrupt, id, err)
	}
	return readPieces(ctx, r, id, pieces)
}

// readPieces reads the pieces of the object id, as listed in its table.
func readPieces(ctx context.Context, r ContentReader, id object.ID, pieces []object.IndirectObjectEntry) ([]byte, error) {
	read := make([][]byte, len(pieces))
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(DefaultWorkers)
	for i, piece := range pieces {
		group.Go(func() (err error) {
			if read[i], err = ReadShortObject(inner, r, piece.Object); err != nil {
				return err
			}
			if int64(len(read[i])) != piece.Length {
				return fmt.Errorf("%w: piece %d of object %s has %d bytes, not %d", errclass.Corrupt, i, id, len(read[i]), piece.Length)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return bytes.Join(read, nil), nil
}

// readForeignObject reads an object of a kind that Varve does not write.
func readForeignObject(ctx context.Context, r ContentReader, id object.ID) ([]byte, error) {
	or, err := object.Open(ctx, objectContents{r}, id)
	if err != nil {
		return nil, err
	}
	defer or.Close() //nolint:errcheck // it only reads
	return io.ReadAll(or)
}

// WriteObject stores data as an object.
func WriteObject(ctx context.Context, w repo.RepositoryWriter, data []byte, options object.WriterOptions) (object.ID, error) {
	ow := w.NewObjectWriter(ctx, options)
	defer ow.Close() //nolint:errcheck // Result says what went wrong
	if _, err := ow.Write(data); err != nil {
		return object.EmptyID, err
	}
	return ow.Result()
}

// EachContent calls call with each content that an object consists of: those of its tables before what they list. It leaves out
// repetitions in a row.
func EachContent(ctx context.Context, r ContentReader, id object.ID, call func(content.ID) error) error {
	inner, ok := id.IndexObjectID()
	if !ok {
		cid, _, ok := id.ContentID()
		if !ok {
			return fmt.Errorf("%w: object %s", errclass.Corrupt, id)
		}
		return call(cid)
	}
	if err := EachContent(ctx, r, inner, call); err != nil {
		return err
	}
	data, err := ReadShortObject(ctx, r, inner)
	if err != nil {
		return WrapReadError(fmt.Sprintf("read table %s", id), err)
	}
	entries, err := Decode(data)
	if err != nil {
		return fmt.Errorf("%w: table %s: %w", errclass.Corrupt, id, err)
	}
	last := object.EmptyID
	for _, e := range entries {
		if e.Object == last {
			continue
		}
		last = e.Object
		if err := EachContent(ctx, r, e.Object, call); err != nil {
			return err
		}
	}
	return nil
}
