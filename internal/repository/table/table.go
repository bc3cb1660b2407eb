package table

import (
	"context"
	"fmt"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/object"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
)

const (
	// tablePrefix makes a content one of kopia's indirect tables, which are kept in metadata packs.
	tablePrefix = "x"
	// Compressor compresses tables, because the IDs in them are hexadecimal.
	Compressor = "zstd-fastest"
	// regionSplitter keeps a region's table in one content: RegionBlocks entries are about 20 KiB.
	regionSplitter = "FIXED-1M"
	// listSplitter cuts the list of a large disk's regions, so that unchanged parts of it are not stored again.
	listSplitter = "FIXED-128K"
	streamID     = "kopia:indirect"
)

// indirectObject is kopia's indirect object. Its entries say which objects the bytes from Start on come from, in order and without
// gaps.
type indirectObject struct {
	Stream  string                       `json:"stream"`
	Entries []object.IndirectObjectEntry `json:"entries"`
}

// WriteRegion stores the table of a region. It returns the ID of the object that its blocks make up.
func WriteRegion(ctx context.Context, w repo.RepositoryWriter, entries []object.IndirectObjectEntry) (object.ID, error) {
	id, _, err := writeTable(ctx, w, entries, regionSplitter)
	return id, err
}

// WriteList stores a list of regions, or another long table. It returns the ID of the object that they make up, and the table's
// bytes.
func WriteList(ctx context.Context, w repo.RepositoryWriter, entries []object.IndirectObjectEntry) (object.ID, []byte, error) {
	return writeTable(ctx, w, entries, listSplitter)
}

func writeTable(ctx context.Context, w repo.RepositoryWriter, entries []object.IndirectObjectEntry, splitter string) (object.ID, []byte, error) {
	data := Encode(entries)
	id, err := WriteObject(ctx, w, data, object.WriterOptions{Description: "TABLE", Prefix: tablePrefix, Compressor: Compressor, MetadataCompressor: Compressor, Splitter: splitter})
	if err != nil {
		return object.EmptyID, nil, fmt.Errorf("write a table of %d entries: %w", len(entries), err)
	}
	id, err = object.ParseID("I" + id.String())
	return id, data, err
}

// readEntries loads the table behind id and checks that its entries cover exactly these parts, in order.
func readEntries(ctx context.Context, r ContentReader, id object.ID, parts []extent.Extent) ([]object.IndirectObjectEntry, error) {
	inner, ok := id.IndexObjectID()
	if !ok {
		return nil, fmt.Errorf("%w: object %s is not a table", errclass.Corrupt, id)
	}
	data, err := ReadShortObject(ctx, r, inner)
	if err != nil {
		return nil, WrapReadError(fmt.Sprintf("read table %s", id), err)
	}
	entries, err := Decode(data)
	if err != nil {
		return nil, fmt.Errorf("%w: table %s: %w", errclass.Corrupt, id, err)
	}
	if len(entries) != len(parts) {
		return nil, fmt.Errorf("%w: table %s has %d entries, not %d", errclass.Corrupt, id, len(entries), len(parts))
	}
	for i, e := range entries {
		if e.Start != parts[i].Offset-parts[0].Offset || e.Length != parts[i].Length || e.Object == object.EmptyID {
			return nil, fmt.Errorf("%w: entry %d of table %s is for %d+%d", errclass.Corrupt, i, id, e.Start, e.Length)
		}
	}
	return entries, nil
}

// ReadList loads the list of a disk's regions.
func ReadList(ctx context.Context, r ContentReader, g Geometry, id object.ID) ([]object.IndirectObjectEntry, error) {
	parts := make([]extent.Extent, g.RegionCount())
	for i := range parts {
		parts[i] = g.Region(i)
	}
	return readEntries(ctx, r, id, parts)
}

// ReadRegion loads the table of region i.
func ReadRegion(ctx context.Context, r ContentReader, g Geometry, i int, id object.ID) ([]object.IndirectObjectEntry, error) {
	parts := make([]extent.Extent, g.BlockCount(i))
	for j := range parts {
		parts[j] = g.Block(i, j)
	}
	return readEntries(ctx, r, id, parts)
}
