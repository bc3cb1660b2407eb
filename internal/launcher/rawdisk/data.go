package rawdisk

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/varvebackup/varve/internal/disk/hole"
	"github.com/varvebackup/varve/internal/extent"
)

// DataBytes returns how many bytes of the disk at path hold data, in whole clusters of this many bytes. A cluster with
// any data counts in full. A block device does not report its holes, and some file systems have none: then the result
// is the size of the whole disk.
func DataBytes(ctx context.Context, path string, cluster int64) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, fmt.Errorf("find data of disk: %w", err)
	}
	defer func() { _ = f.Close() }() // only read
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, fmt.Errorf("find data of disk %s: %w", path, err)
	}
	info, err := f.Stat()
	if err != nil {
		return 0, fmt.Errorf("find data of disk: %w", err)
	}
	if !info.Mode().IsRegular() {
		return size, nil
	}
	n, err := dataInFile(ctx, f, size, cluster)
	if err != nil {
		return 0, fmt.Errorf("find data of disk %s: %w", path, err)
	}
	return n, nil
}

func dataInFile(ctx context.Context, f *os.File, size, cluster int64) (int64, error) {
	total := int64(0)
	counted := int64(0) // all clusters below it are counted
	for at := int64(0); at < size; {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		data, err := hole.NextData(f, extent.Extent{Offset: at, Length: size - at})
		if err != nil {
			return 0, err
		}
		if data.Empty() {
			break
		}
		first := max(data.Offset/cluster*cluster, counted)
		counted = max((data.End()+cluster-1)/cluster*cluster, counted)
		total += counted - first
		at = data.End()
	}
	return min(total, size), nil
}
