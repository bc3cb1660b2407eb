package domain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/varvebackup/varve/internal/durable"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/tracking"
)

// Identity identifies the disk that an overlay is bound to.
type Identity struct {
	// ClaimUID is the UID of the disk's claim.
	ClaimUID string `json:"claimUID"`
	// ContentGeneration changes whenever the disk's content is replaced.
	ContentGeneration string `json:"contentGeneration,omitempty"`
	// VirtualBytes is the size of the raw disk in bytes, as DiskSize returns it.
	VirtualBytes int64 `json:"virtualBytes"`
}

// Run identifies a run of the disk's claim. The controller writes it on the claim before it creates any pod that can write to the claim.
type Run struct {
	// ID is this run. Empty: the claim does not name it as its last run, so no overlay is kept.
	ID string
	// Previous is the run before it. Empty: unknown, or there was none.
	Previous string
}

// Renewed says why a new overlay was created, which voids all bitmaps of its disk. The values are those of
// Disk.overlay_renewed in launcher.proto.
type Renewed string

const (
	// Kept: the overlay is the old one; its bitmaps may be valid.
	Kept Renewed = ""
	// NewOverlay: there was no overlay, or it had no readable record.
	NewOverlay Renewed = "NewOverlay"
	// DiskReplaced: the overlay belonged to another claim, another content or another size.
	DiskReplaced Renewed = "DiskReplaced"
	// UsedElsewhere: another run used the disk after the overlay's own run, or it is unknown which run was the last.
	UsedElsewhere Renewed = "UsedElsewhere"
	// WrittenWithoutOverlay: the raw disk or the overlay changed while no guest was running.
	WrittenWithoutOverlay Renewed = "WrittenWithoutOverlay"
	// NotClean: QEMU did not end cleanly, or nothing recorded that it did.
	NotClean Renewed = "NotClean"
	// NotMoved: the overlay could not be moved from the state claim that was too small.
	NotMoved Renewed = "NotMoved"
)

// Overlays are the qcow2 files, in one directory, that track a guest's disks.
//
// Each is <volume>.qcow2 with <volume>.json beside it. The record exists only while it describes the current overlay:
// it is removed before an overlay is replaced, and written last. Everything is durable when a call returns.
//
// An overlay hides what is below its zero clusters, and its bitmaps miss every write that does not go through it. So
// it is kept only if its own run was the last that could write to the disk, and the raw disk looks as it did at the
// end of that run. The claim's content generation covers those who replace the content on purpose.
type Overlays struct {
	// Dir is the directory of the overlays. It must exist.
	Dir string
}

func (o *Overlays) overlayPath(volume string) string { return filepath.Join(o.Dir, volume+".qcow2") }
func (o *Overlays) recordPath(volume string) string  { return filepath.Join(o.Dir, volume+".json") }

// Path returns where Prepare creates the overlay of a volume.
func (o *Overlays) Path(volume string) string { return o.overlayPath(volume) }

// Prepare makes the overlay of a volume ready over the raw disk at rawPath, a file or a block device of exactly
// id.VirtualBytes bytes. It returns Kept, or why it created a new overlay. It never changes the raw disk. From
// here on the overlay belongs to this run. No QEMU may have the disk open. errclass.Invalid: the disk's size differs from
// id's or is not a multiple of 512.
func (o *Overlays) Prepare(ctx context.Context, volume, rawPath string, id Identity, run Run) (Renewed, error) {
	size, err := DiskSize(rawPath)
	if err != nil {
		return "", fmt.Errorf("prepare overlay of %s: %w", volume, err)
	}
	if size != id.VirtualBytes {
		return "", fmt.Errorf("prepare overlay of %s: %w: %s has %d bytes, not %d", volume, errclass.Invalid, rawPath, size, id.VirtualBytes)
	}
	if size == 0 || size%512 != 0 {
		return "", fmt.Errorf("prepare overlay of %s: %w: %s has %d bytes; a disk must be a multiple of 512 bytes", volume, errclass.Invalid, rawPath, size)
	}
	seen, err := o.lookAt(volume, rawPath)
	if err != nil {
		return "", fmt.Errorf("prepare overlay of %s: %w", volume, err)
	}
	why := renewalReason(seen, id, run)
	if why == Kept {
		err = o.passToRun(volume, seen.record, run)
	} else {
		err = o.renewOverlay(ctx, volume, rawPath, id, run)
	}
	if err != nil {
		return "", fmt.Errorf("prepare overlay of %s: %w", volume, err)
	}
	return why, nil
}

// passToRun hands an overlay on to the next run, which uses it as the last one left it.
func (o *Overlays) passToRun(volume string, rec *record, run Run) error {
	if rec.Run == run.ID {
		return nil
	}
	rec.Run = run.ID
	return writeRecord(o.recordPath(volume), rec)
}

// MarkStarted durably withdraws the mark that the overlays of these volumes were closed cleanly. Call it before QEMU
// starts: after that only MarkClean, or MarkNotStarted, makes them usable again.
func (o *Overlays) MarkStarted(volumes []string) error {
	for _, volume := range volumes {
		rec, err := readRecord(o.recordPath(volume))
		if err != nil {
			return fmt.Errorf("mark overlay of %s as started: %w", volume, err)
		}
		if rec.Clean != nil {
			rec.Clean, rec.BeforeStart = nil, rec.Clean
		}
		if err := writeRecord(o.recordPath(volume), rec); err != nil {
			return fmt.Errorf("mark overlay of %s as started: %w", volume, err)
		}
	}
	return nil
}

// MarkNotStarted undoes MarkStarted for a guest that did not start: an overlay that looks as it did before counts as
// clean again. Call it once QEMU is gone, and only if it never ran the guest. An overlay that QEMU has touched stays
// marked as started. When QEMU opens an overlay with bitmaps for writing, it marks the bitmaps as in use, so the
// file's modification time changes before the guest can write.
func (o *Overlays) MarkNotStarted(volumes map[string]Opened) error {
	var errs []error
	for volume, opened := range volumes {
		if err := o.markNotStarted(volume, opened); err != nil {
			errs = append(errs, fmt.Errorf("mark overlay of %s as not started: %w", volume, err))
		}
	}
	return errors.Join(errs...)
}

func (o *Overlays) markNotStarted(volume string, opened Opened) error {
	rec, err := readRecord(o.recordPath(volume))
	if err != nil {
		return err
	}
	if rec.Run != opened.Run || rec.Clean != nil || rec.BeforeStart == nil {
		return nil
	}
	now, err := cleanNow(opened.RawPath, o.overlayPath(volume), rec.BeforeStart.Content.Seed)
	if err != nil || *now != *rec.BeforeStart {
		return err
	}
	rec.Clean, rec.BeforeStart = now, nil
	return writeRecord(o.recordPath(volume), rec)
}

// HandOn hands the overlay of a volume on to a run that does not open it, if the overlay belongs to the run before.
// Prepare does the same for a disk that can be opened. It does nothing for a volume without an overlay.
func (o *Overlays) HandOn(volume, claimUID string, run Run) error {
	rec, err := readRecord(o.recordPath(volume))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errBadRecord) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("hand on overlay of %s: %w", volume, err)
	}
	if rec.Identity.ClaimUID != claimUID || !run.isNextAfter(rec.Run) {
		return nil
	}
	if err := o.passToRun(volume, rec, run); err != nil {
		return fmt.Errorf("hand on overlay of %s: %w", volume, err)
	}
	return nil
}

// LetGo records that the guest opens the disk of a volume without its overlay, so that the overlay is never kept.
func (o *Overlays) LetGo(volume string) error {
	rec, err := readRecord(o.recordPath(volume))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errBadRecord) {
		return nil
	}
	if err == nil {
		rec.Run = ""
		err = writeRecord(o.recordPath(volume), rec)
	}
	if err != nil {
		return fmt.Errorf("let go of overlay of %s: %w", volume, err)
	}
	return nil
}

// DiskOf returns the size in bytes of the disk that a claim had, under any volume name, in this generation of its
// content. 0: no record knows one.
func (o *Overlays) DiskOf(claimUID, contentGeneration string) (int64, error) {
	records, err := filepath.Glob(filepath.Join(o.Dir, "*.json"))
	if err != nil {
		return 0, fmt.Errorf("look for the disk of claim %s: %w", claimUID, err)
	}
	for _, path := range records {
		data, err := os.ReadFile(path)
		if err != nil {
			return 0, fmt.Errorf("look for the disk of claim %s: %w", claimUID, err)
		}
		var rec claimRecord
		if err := json.Unmarshal(data, &rec); err != nil {
			continue // it says nothing about any claim
		}
		if rec.Identity.ClaimUID == claimUID && rec.Identity.ContentGeneration == contentGeneration {
			return rec.Identity.VirtualBytes, nil
		}
	}
	return 0, nil
}

// Opened is a disk that a guest had open through its overlay.
type Opened struct {
	RawPath string
	// Run is the ID of the run that opened it.
	Run string
}

// MarkClean records what the raw disks and their overlays look like now. Call it once QEMU has ended cleanly, and
// only then. If one volume fails, the others are still marked. An overlay that another run has taken over is left
// alone, with an error.
func (o *Overlays) MarkClean(volumes map[string]Opened) error {
	var errs []error
	for volume, opened := range volumes {
		if err := o.markClean(volume, opened); err != nil {
			errs = append(errs, fmt.Errorf("mark overlay of %s as clean: %w", volume, err))
		}
	}
	return errors.Join(errs...)
}

func (o *Overlays) markClean(volume string, opened Opened) error {
	rawPath := opened.RawPath
	rec, err := readRecord(o.recordPath(volume))
	if err != nil {
		return err
	}
	if rec.Run != opened.Run {
		return fmt.Errorf("%w: the overlay belongs to run %q now, not to %q", errclass.Invalid, rec.Run, opened.Run)
	}
	// Without this a power failure could bring back an older modification time. That would only void the overlay, but without need.
	for _, path := range []string{rawPath, o.overlayPath(volume)} {
		if err := durable.Sync(path); err != nil {
			return err
		}
	}
	if rec.Clean, err = cleanNow(rawPath, o.overlayPath(volume), opened.Run); err != nil {
		return err
	}
	rec.BeforeStart = nil
	return writeRecord(o.recordPath(volume), rec)
}

// sight is what Prepare finds out about an overlay.
type sight struct {
	// overlay says that the qcow2 file exists. record is nil if there is no readable record.
	overlay    bool
	record     *record
	raw, qcow2 stamp
	// content is the current fingerprint, taken with the seed of the clean end. Empty: there was no clean end, or the disk cannot be read.
	content fingerprint
}

func (o *Overlays) lookAt(volume, rawPath string) (sight, error) {
	var s sight
	var err error
	if s.raw, err = stampOf(rawPath); err != nil {
		return s, err
	}
	s.qcow2, err = stampOf(o.overlayPath(volume))
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	s.overlay = true
	s.record, err = readRecord(o.recordPath(volume))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errBadRecord) {
		return s, nil
	}
	if err != nil || s.record.Clean == nil {
		return s, err
	}
	if s.content, err = fingerprintOf(rawPath, s.record.Clean.Content.Seed); err != nil {
		// A disk that cannot be compared counts as changed. Whether it can be used turns out when the guest starts.
		s.content = fingerprint{}
	}
	return s, nil
}

// renewalReason returns why a new overlay must be created, or Kept.
func renewalReason(s sight, id Identity, run Run) Renewed {
	switch {
	case !s.overlay || s.record == nil:
		return NewOverlay
	case s.record.Identity != id:
		return DiskReplaced
	case !run.isNextAfter(s.record.Run):
		return UsedElsewhere
	case s.record.Clean == nil:
		return NotClean
	case s.record.Clean.Raw != s.raw || s.record.Clean.Overlay != s.qcow2 || s.record.Clean.Content != s.content:
		return WrittenWithoutOverlay
	}
	return Kept
}

// isNextAfter says that no other run used the disk between the run that an overlay knows and this one.
func (r Run) isNextAfter(known string) bool {
	return r.ID != "" && known != "" && (known == r.ID || known == r.Previous)
}

// renewOverlay replaces a volume's overlay. A crash at any line leaves the old overlay with its record, or an overlay
// without a record, which counts as none.
func (o *Overlays) renewOverlay(ctx context.Context, volume, rawPath string, id Identity, run Run) error {
	if err := durable.Remove(o.recordPath(volume)); err != nil {
		return err
	}
	tmp := o.overlayPath(volume) + ".new"
	if err := createOverlay(ctx, tmp, rawPath, id.VirtualBytes, tracking.ClusterSize(id.VirtualBytes)); err != nil {
		return errors.Join(err, durable.Remove(tmp))
	}
	if err := durable.Rename(tmp, o.overlayPath(volume)); err != nil {
		return err
	}
	// No guest ever had it open. Until one does, it may be kept under the same rules as after a clean end.
	clean, err := cleanNow(rawPath, o.overlayPath(volume), run.ID)
	if err != nil {
		return err
	}
	return writeRecord(o.recordPath(volume), &record{Identity: id, Run: run.ID, Clean: clean})
}

// DiskSize returns the size in bytes of a raw disk, which is a file or a block device.
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
