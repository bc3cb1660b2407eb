package domain

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/varvebackup/varve/internal/durable"
	"github.com/varvebackup/varve/internal/tracking"
)

// Identity is the disk that an overlay is bound to.
type Identity struct {
	// ClaimUID is the UID of the disk's claim.
	ClaimUID string `json:"claimUID"`
	// ContentGeneration changes whenever the disk's content was replaced.
	ContentGeneration string `json:"contentGeneration,omitempty"`
	// VirtualBytes is the size of the raw disk in bytes, as DiskSize tells it.
	VirtualBytes int64 `json:"virtualBytes"`
}

// Renewed says why an overlay was made anew, so that all bitmaps of its disk are void. The values are
// those of launcher.proto's Disk.overlay_renewed.
type Renewed string

const (
	// Kept: the overlay is the old one; its bitmaps may be valid.
	Kept Renewed = ""
	// NewOverlay: there was none.
	NewOverlay Renewed = "NewOverlay"
	// DiskReplaced: the overlay belonged to another claim, another content or another size.
	DiskReplaced Renewed = "DiskReplaced"
	// WrittenWithoutOverlay: the raw disk or the overlay changed while no guest ran.
	WrittenWithoutOverlay Renewed = "WrittenWithoutOverlay"
	// NotClean: QEMU did not end cleanly, or nobody could say so.
	NotClean Renewed = "NotClean"
)

// Overlays are the qcow2 files, in one directory, that track a guest's disks.
//
// Each is <volume>.qcow2 with <volume>.json beside it. The record exists only while it speaks of the overlay that is
// there: it is removed before an overlay is replaced, and written last. Everything is durable when a call returns.
//
// What nobody can see here is a write to a block device by another host: a device has no modification time. The content
// generation of the claim speaks for those who replace contents on purpose.
type Overlays struct {
	// Dir is where they are. It must exist.
	Dir string
}

func (o *Overlays) overlay(volume string) string { return filepath.Join(o.Dir, volume+".qcow2") }
func (o *Overlays) record(volume string) string  { return filepath.Join(o.Dir, volume+".json") }

// Path is where Prepare makes the overlay of a volume.
func (o *Overlays) Path(volume string) string { return o.overlay(volume) }

// Prepare makes the overlay of a volume ready over the raw disk at rawPath, a file or a block device
// of exactly id.VirtualBytes bytes, and says why it was made anew, or Kept. It never changes the raw disk.
// No QEMU may have the disk open. ErrInvalid: the disk's size is not what id says or not a multiple of 512.
func (o *Overlays) Prepare(ctx context.Context, volume, rawPath string, id Identity) (Renewed, error) {
	size, err := DiskSize(rawPath)
	if err != nil {
		return "", fmt.Errorf("prepare overlay of %s: %w", volume, err)
	}
	if size != id.VirtualBytes {
		return "", fmt.Errorf("prepare overlay of %s: %w: %s has %d bytes, not %d", volume, ErrInvalid, rawPath, size, id.VirtualBytes)
	}
	if size == 0 || size%512 != 0 {
		return "", fmt.Errorf("prepare overlay of %s: %w: %s has %d bytes; a disk must be a multiple of 512 bytes", volume, ErrInvalid, rawPath, size)
	}
	seen, err := o.look(volume, rawPath)
	if err != nil {
		return "", fmt.Errorf("prepare overlay of %s: %w", volume, err)
	}
	why := judge(seen, id)
	if why == Kept {
		return Kept, nil
	}
	if err := o.renew(ctx, volume, rawPath, id); err != nil {
		return "", fmt.Errorf("prepare overlay of %s: %w", volume, err)
	}
	return why, nil
}

// MarkStarted takes back, durably, that the overlays of these volumes were closed cleanly. Call it
// before QEMU starts: whatever happens from then on, only MarkClean makes them usable again.
func (o *Overlays) MarkStarted(volumes []string) error {
	for _, volume := range volumes {
		rec, err := readRecord(o.record(volume))
		if err != nil {
			return fmt.Errorf("mark overlay of %s as started: %w", volume, err)
		}
		rec.Clean = nil
		if err := writeRecord(o.record(volume), rec); err != nil {
			return fmt.Errorf("mark overlay of %s as started: %w", volume, err)
		}
	}
	return nil
}

// MarkClean records what the raw disks (volume -> path) and their overlays look like now. Call it once
// QEMU has ended cleanly, and only then. A volume that fails does not keep the others from being marked.
func (o *Overlays) MarkClean(volumes map[string]string) error {
	var errs []error
	for volume, rawPath := range volumes {
		if err := o.markClean(volume, rawPath); err != nil {
			errs = append(errs, fmt.Errorf("mark overlay of %s as clean: %w", volume, err))
		}
	}
	return errors.Join(errs...)
}

func (o *Overlays) markClean(volume, rawPath string) error {
	rec, err := readRecord(o.record(volume))
	if err != nil {
		return err
	}
	// Without this a power failure could bring back an older modification time. That would only void the overlay, but needlessly.
	for _, path := range []string{rawPath, o.overlay(volume)} {
		if err := durable.Sync(path); err != nil {
			return err
		}
	}
	clean := &cleanRecord{}
	if clean.Raw, err = stampOf(rawPath); err != nil {
		return err
	}
	if clean.Overlay, err = stampOf(o.overlay(volume)); err != nil {
		return err
	}
	rec.Clean = clean
	return writeRecord(o.record(volume), rec)
}

// sight is what Prepare finds of an overlay.
type sight struct {
	// overlay says that the qcow2 file is there; record is nil if there is none that can be read.
	overlay    bool
	record     *record
	raw, qcow2 stamp
}

func (o *Overlays) look(volume, rawPath string) (sight, error) {
	var s sight
	var err error
	if s.raw, err = stampOf(rawPath); err != nil {
		return s, err
	}
	s.qcow2, err = stampOf(o.overlay(volume))
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	s.overlay = true
	s.record, err = readRecord(o.record(volume))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errBadRecord) {
		return s, nil
	}
	return s, err
}

// judge says why the overlay must be made anew, or Kept.
func judge(s sight, id Identity) Renewed {
	switch {
	case !s.overlay || s.record == nil:
		return NewOverlay
	case s.record.Identity != id:
		return DiskReplaced
	case s.record.Clean == nil:
		return NotClean
	case s.record.Clean.Raw != s.raw || s.record.Clean.Overlay != s.qcow2:
		return WrittenWithoutOverlay
	}
	return Kept
}

// renew replaces a volume's overlay. A crash at any line leaves the old overlay with its record, or an
// overlay without a record, which counts as none.
func (o *Overlays) renew(ctx context.Context, volume, rawPath string, id Identity) error {
	if err := durable.Remove(o.record(volume)); err != nil {
		return err
	}
	tmp := o.overlay(volume) + ".new"
	if err := createOverlay(ctx, tmp, rawPath, id.VirtualBytes, tracking.ClusterSize(id.VirtualBytes)); err != nil {
		return errors.Join(err, durable.Remove(tmp))
	}
	if err := durable.Rename(tmp, o.overlay(volume)); err != nil {
		return err
	}
	// It was never open in a guest: until it is, it may be kept under the same rules as after a clean end.
	clean := &cleanRecord{}
	var err error
	if clean.Raw, err = stampOf(rawPath); err != nil {
		return err
	}
	if clean.Overlay, err = stampOf(o.overlay(volume)); err != nil {
		return err
	}
	return writeRecord(o.record(volume), &record{Identity: id, Clean: clean})
}

// DiskSize is the size in bytes of a raw disk: a file or a block device.
func DiskSize(path string) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, fmt.Errorf("size of disk: %w", err)
	}
	defer func() { _ = f.Close() }() // only read
	size, err := f.Seek(0, 2)
	if err != nil {
		return 0, fmt.Errorf("size of disk %s: %w", path, err)
	}
	return size, nil
}
