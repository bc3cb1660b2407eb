package repository

import (
	"bytes"
	"context"
	"fmt"
	"io"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/object"
	"golang.org/x/sync/errgroup"

	"github.com/varvebackup/varve/internal/extent"
)

const (
	// tablePrefix makes a content one of kopia's indirect tables, which are kept in metadata packs.
	tablePrefix = "x"
	// tableCompressor compresses tables, because the IDs in them are hexadecimal.
	tableCompressor = "zstd-fastest"
	// regionSplitter keeps a region's table in one content: RegionBlocks entries are about 20 KiB.
	regionSplitter = "FIXED-1M"
	// listSplitter cuts the list of a large disk's regions, so that unchanged parts of it are not stored again.
	listSplitter = "FIXED-128K"
	streamID     = "kopia:indirect"
)

// table is kopia's indirect object. Its entries say which objects the bytes from Start on come from, in order and without gaps.
type table struct {
	Stream  string                       `json:"stream"`
	Entries []object.IndirectObjectEntry `json:"entries"`
}

// writeTable stores entries. It returns the ID of the object that they make up, and the table's bytes.
func writeTable(ctx context.Context, w repo.RepositoryWriter, entries []object.IndirectObjectEntry, splitter string) (object.ID, []byte, error) {
	data := encodeTable(entries)
	id, err := writeObject(ctx, w, data, object.WriterOptions{Description: "TABLE", Prefix: tablePrefix, Compressor: tableCompressor, MetadataCompressor: tableCompressor, Splitter: splitter})
	if err != nil {
		return object.EmptyID, nil, fmt.Errorf("write a table of %d entries: %w", len(entries), err)
	}
	id, err = object.ParseID("I" + id.String())
	return id, data, err
}

func writeObject(ctx context.Context, w repo.RepositoryWriter, data []byte, options object.WriterOptions) (object.ID, error) {
	ow := w.NewObjectWriter(ctx, options)
	defer ow.Close() //nolint:errcheck // Result says what went wrong
	if _, err := ow.Write(data); err != nil {
		return object.EmptyID, err
	}
	return ow.Result()
}

// contents reads contents in the way that kopia's object package wants.
type contents struct{ contentReader }

// PrefetchContents does nothing, because all callers read in parallel.
func (contents) PrefetchContents(context.Context, []content.ID, string) []content.ID { return nil }

// readBytes returns the content of a short object, which is mostly one content. It reads the contents of a longer one in
// parallel.
func readBytes(ctx context.Context, r contentReader, id object.ID) ([]byte, error) {
	if cid, compressed, ok := id.ContentID(); ok && !compressed {
		return r.GetContent(ctx, cid)
	}
	inner, ok := id.IndexObjectID()
	if !ok {
		return readObject(ctx, r, id)
	}
	data, err := readBytes(ctx, r, inner)
	if err != nil {
		return nil, err
	}
	pieces, err := decodeTable(data)
	if err != nil {
		return nil, fmt.Errorf("%w: table %s: %w", ErrCorrupt, id, err)
	}
	return readPieces(ctx, r, id, pieces)
}

// readPieces reads the pieces of the object id, as listed in its table.
func readPieces(ctx context.Context, r contentReader, id object.ID, pieces []object.IndirectObjectEntry) ([]byte, error) {
	read := make([][]byte, len(pieces))
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(DefaultWorkers)
	for i, piece := range pieces {
		group.Go(func() (err error) {
			if read[i], err = readBytes(inner, r, piece.Object); err != nil {
				return err
			}
			if int64(len(read[i])) != piece.Length {
				return fmt.Errorf("%w: piece %d of object %s has %d bytes, not %d", ErrCorrupt, i, id, len(read[i]), piece.Length)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return bytes.Join(read, nil), nil
}

// readObject reads an object of a kind that Varve does not write.
func readObject(ctx context.Context, r contentReader, id object.ID) ([]byte, error) {
	or, err := object.Open(ctx, contents{r}, id)
	if err != nil {
		return nil, err
	}
	defer or.Close() //nolint:errcheck // it only reads
	return io.ReadAll(or)
}

// readTable loads the table behind id and checks that its entries cover exactly these parts, in order.
func readTable(ctx context.Context, r contentReader, id object.ID, parts []extent.Extent) ([]object.IndirectObjectEntry, error) {
	inner, ok := id.IndexObjectID()
	if !ok {
		return nil, fmt.Errorf("%w: object %s is not a table", ErrCorrupt, id)
	}
	data, err := readBytes(ctx, r, inner)
	if err != nil {
		return nil, readError(fmt.Sprintf("read table %s", id), err)
	}
	entries, err := decodeTable(data)
	if err != nil {
		return nil, fmt.Errorf("%w: table %s: %w", ErrCorrupt, id, err)
	}
	if len(entries) != len(parts) {
		return nil, fmt.Errorf("%w: table %s has %d entries, not %d", ErrCorrupt, id, len(entries), len(parts))
	}
	for i, e := range entries {
		if e.Start != parts[i].Offset-parts[0].Offset || e.Length != parts[i].Length || e.Object == object.EmptyID {
			return nil, fmt.Errorf("%w: entry %d of table %s is for %d+%d", ErrCorrupt, i, id, e.Start, e.Length)
		}
	}
	return entries, nil
}

// readRegions loads the list of a disk's regions.
func readRegions(ctx context.Context, r contentReader, g geometry, id object.ID) ([]object.IndirectObjectEntry, error) {
	parts := make([]extent.Extent, g.regions())
	for i := range parts {
		parts[i] = g.region(i)
	}
	return readTable(ctx, r, id, parts)
}

// readBlocks loads the table of region i.
func readBlocks(ctx context.Context, r contentReader, g geometry, i int, id object.ID) ([]object.IndirectObjectEntry, error) {
	parts := make([]extent.Extent, g.blocks(i))
	for j := range parts {
		parts[j] = g.blockOf(i, j)
	}
	return readTable(ctx, r, id, parts)
}
