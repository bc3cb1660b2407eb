package verify

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/content"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/repository/engine"
)

// Damage is a part of a disk that cannot be restored, or a whole disk if Extent is empty. Adjacent blocks are one part, and Err
// is what is wrong with the first of them. A region whose table is damaged is one part, too.
type Damage struct {
	Point *engine.RestorePoint
	// Disk is engine.FilesName if it is no disk but a tree of files. File is then the path of a file or directory in it, or "" if
	// it concerns all of them.
	Disk   string
	File   string
	Extent extent.Extent
	Err    error
}

// damageError says briefly what is wrong with something that is stored. err, if not nil, is the error that showed it. A
// damageError is errclass.Corrupt.
type damageError struct {
	text string
	err  error
}

func (e *damageError) Error() string { return e.text }

func (e *damageError) Unwrap() []error {
	if e.err == nil {
		return []error{errclass.Corrupt}
	}
	return []error{errclass.Corrupt, e.err}
}

// regionDamage is what is wrong with a region: its table, or some of its blocks in order.
type regionDamage struct {
	table  error
	blocks []blockDamage
}

type blockDamage struct {
	block int
	err   error
}

// damageList collects the damage of one disk.
type damageList struct {
	disk string
	all  []Damage
	// table says whether the last entry of all is damage of tables.
	table bool
}

// addDamage adds what is wrong with e, which lies behind everything that was added before. It never merges a table's damage with that
// of blocks.
func (d *damageList) addDamage(e extent.Extent, err error, table bool) {
	if n := len(d.all); n > 0 && d.table == table && d.all[n-1].Extent.End() == e.Offset {
		d.all[n-1].Extent.Length += e.Length
		return
	}
	d.all = append(d.all, Damage{Disk: d.disk, Extent: e, Err: err})
	d.table = table
}

// packList knows which blobs exist, and their lengths. It is safe for concurrent use.
type packList struct {
	rep repo.DirectRepository

	mu    sync.Mutex
	bytes map[blob.ID]int64
	// checkedAgain holds the blobs that were looked for again.
	checkedAgain map[blob.ID]bool
}

// listPacks lists the blobs.
func listPacks(ctx context.Context, rep repo.DirectRepository) (*packList, error) {
	p := &packList{rep: rep, bytes: map[blob.ID]int64{}, checkedAgain: map[blob.ID]bool{}}
	err := rep.BlobReader().ListBlobs(ctx, "", func(b blob.Metadata) error {
		p.bytes[b.BlobID] = b.Length
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the blobs: %w", err)
	}
	return p, nil
}

// holdsContent says whether the storage has the place of a content. If the list does not have the blob, or has it shorter,
// holdsContent looks for it again, because it may be newer than the list.
func (p *packList) holdsContent(ctx context.Context, i content.Info) (bool, error) {
	end := int64(i.PackOffset) + int64(i.PackedLength)
	p.mu.Lock()
	defer p.mu.Unlock()
	if n, ok := p.bytes[i.PackBlobID]; ok && end <= n || p.checkedAgain[i.PackBlobID] {
		return ok && end <= n, nil
	}
	p.checkedAgain[i.PackBlobID] = true
	b, err := p.rep.BlobReader().GetMetadata(ctx, i.PackBlobID)
	switch {
	case errors.Is(err, blob.ErrBlobNotFound):
		delete(p.bytes, i.PackBlobID)
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look for blob %s: %w", i.PackBlobID, err)
	}
	p.bytes[i.PackBlobID] = b.Length
	return end <= b.Length, nil
}
