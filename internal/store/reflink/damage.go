package reflink

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/varvebackup/varve/internal/durable"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
)

// maxReason is how many bytes the file damaged may have.
const maxReason = 4096

// MarkDamaged implements [disk.Disk].
func (d *Disk) MarkDamaged(ctx context.Context, name disk.Name, uid disk.UID, why string) error {
	if err := d.markDamaged(ctx, name, uid, why); err != nil {
		return fmt.Errorf("mark %q as damaged: %w", name, describeFull(err))
	}
	return nil
}

func (d *Disk) markDamaged(ctx context.Context, name disk.Name, uid disk.UID, why string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	o, err := d.findImage(ctx, name, uid)
	if err != nil || d.damaged[o.UID] {
		return err
	}
	d.damaged[o.UID] = true // until the disk is closed, if it cannot be written
	return durable.Write(filepath.Join(d.dir, o.group, damagedFile), []byte(why[:min(len(why), maxReason)]))
}

// readDamage returns an error if an object is marked as damaged.
func (d *Disk) readDamage(o located) error {
	if o.Kind != disk.KindImage {
		return nil
	}
	why, err := os.ReadFile(filepath.Join(d.dir, o.group, damagedFile))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	return fmt.Errorf("%w: %.200s", errclass.Corrupt, why)
}
