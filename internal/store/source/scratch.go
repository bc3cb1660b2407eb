package source

import (
	"context"
	"fmt"

	"github.com/varvebackup/varve/internal/store/handover"
)

// convertScratch converts a qcow2 image that can only be read from the beginning to the end: it is stored first, at the
// far end of the device, so that nothing but the image's disk bounds its size.
func (j *job) convertScratch(ctx context.Context, c *content) (int64, error) {
	stored, err := j.device.writeStreamAt(ctx, c, handover.ScratchOffset, handover.ScratchBytes)
	if err != nil {
		return 0, fmt.Errorf("store the qcow2 image before its conversion, because parts of it cannot be asked for: %w", err)
	}
	bytes, err := j.convert(ctx, &scratchImage{device: j.device, bytes: stored})
	if err != nil {
		return 0, err
	}
	return bytes, j.device.wipeRange(ctx, handover.ScratchOffset, handover.ScratchOffset+stored)
}

// scratchImage is a stored image.
type scratchImage struct {
	device *device
	bytes  int64
}

// Size implements nbd.Backend.
func (i *scratchImage) Size() int64 { return i.bytes }

// ReadAt implements nbd.Backend.
func (i *scratchImage) ReadAt(_ context.Context, p []byte, offset int64) error {
	if _, err := i.device.ReadAt(p, handover.ScratchOffset+offset); err != nil {
		return fmt.Errorf("read the stored image: %w", err)
	}
	return nil
}
