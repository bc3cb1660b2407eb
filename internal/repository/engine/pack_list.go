package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/content"

	"github.com/varvebackup/varve/internal/repository/storage"
)

// PackList knows which packs the storage has, how long they are, and which of them somebody has found to be damaged. It is safe for
// concurrent use.
type PackList struct {
	blobs blob.Reader

	mu      sync.Mutex
	bytes   map[blob.ID]int64
	damaged map[blob.ID]bool
	// checkedAgain holds the blobs that were looked for again.
	checkedAgain map[blob.ID]bool
}

// listAttempts is how often a list that is cut off is asked for. It has many parts, each of which may be cut.
const listAttempts = 5

// ListPacks lists the packs. It asks the storage itself: kopia caches lists of index blobs only. All names are asked for, because the
// few blobs that are no packs cost less than one list for each kind of pack. A list that is cut off is asked for again.
func ListPacks(ctx context.Context, blobs blob.Reader) (*PackList, error) {
	for attempt := 1; ; attempt++ {
		p, err := listPacksOnce(ctx, blobs)
		switch {
		case err == nil:
			return p, nil
		case !errors.Is(err, io.ErrUnexpectedEOF) || attempt == listAttempts || ctx.Err() != nil:
			return nil, fmt.Errorf("list the blobs: %w", err)
		}
	}
}

func listPacksOnce(ctx context.Context, blobs blob.Reader) (*PackList, error) {
	p := &PackList{blobs: blobs, bytes: map[blob.ID]int64{}, damaged: map[blob.ID]bool{}, checkedAgain: map[blob.ID]bool{}}
	return p, blobs.ListBlobs(ctx, "", func(b blob.Metadata) error {
		name := string(b.BlobID)
		if pack, ok := strings.CutPrefix(name, storage.DamagedPrefix); ok {
			p.damaged[blob.ID(pack)] = true
		} else if isPack(name) {
			p.bytes[b.BlobID] = b.Length
		}
		return nil
	})
}

// isPack says whether a blob is a pack by its name.
func isPack(name string) bool {
	for _, prefix := range content.PackBlobIDPrefixes {
		if strings.HasPrefix(name, string(prefix)) {
			return true
		}
	}
	return false
}

// Damaged says whether somebody has found a pack to be damaged.
func (p *PackList) Damaged(id blob.ID) bool { return p.damaged[id] }

// HoldsContent says whether the storage has the place of a content. If the list does not have the blob, or has it shorter,
// HoldsContent looks for it again, because it may be newer than the list.
func (p *PackList) HoldsContent(ctx context.Context, i content.Info) (bool, error) {
	end := int64(i.PackOffset) + int64(i.PackedLength)
	p.mu.Lock()
	defer p.mu.Unlock()
	if n, ok := p.bytes[i.PackBlobID]; ok && end <= n || p.checkedAgain[i.PackBlobID] {
		return ok && end <= n, nil
	}
	if err := p.lookAgain(ctx, i.PackBlobID); err != nil {
		return false, err
	}
	n, ok := p.bytes[i.PackBlobID]
	return ok && end <= n, nil
}

// lookAgain asks the storage for one blob. The caller holds the lock.
func (p *PackList) lookAgain(ctx context.Context, id blob.ID) error {
	p.checkedAgain[id] = true
	b, err := p.blobs.GetMetadata(ctx, id)
	switch {
	case errors.Is(err, blob.ErrBlobNotFound):
		delete(p.bytes, id)
	case err != nil:
		return fmt.Errorf("look for blob %s: %w", id, err)
	default:
		p.bytes[id] = b.Length
	}
	return nil
}
