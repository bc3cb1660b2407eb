package launcher

import (
	"context"

	"github.com/varvebackup/varve/internal/domain"
)

// QEMUImages makes a backup's files with QEMU's own tools.
type QEMUImages struct{}

// CreateTarget implements push.Images.
func (QEMUImages) CreateTarget(ctx context.Context, path string, virtualBytes int64) error {
	return domain.CreateTarget(ctx, path, virtualBytes)
}

// SetBacking implements push.Images.
func (QEMUImages) SetBacking(ctx context.Context, path, relativeBacking string) error {
	return domain.SetBacking(ctx, path, relativeBacking)
}
