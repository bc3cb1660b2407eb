package mover

import (
	"fmt"

	"github.com/varvebackup/varve/internal/errclass"
)

// OpenError is an error of opening a disk, as opposed to an error of the repository.
type OpenError struct {
	// Source is the name of the source that was to be opened; "" for a destination, which Err names.
	Source string
	Err    error
}

func (e *OpenError) Error() string {
	if e.Source == "" {
		return e.Err.Error()
	}
	return fmt.Sprintf("disk %s: %s", e.Source, e.Err)
}

func (e *OpenError) Unwrap() error { return e.Err }

// MissingBitmapError reports that an image lacks the bitmap of the checkpoint that a backup was given. The next backup
// would have nothing to count changes from. It is of class Invalid.
type MissingBitmapError struct {
	// Source is the source's name, and Location is the image.
	Source, Location string
	Checkpoint       string
}

func (e *MissingBitmapError) Error() string {
	return fmt.Sprintf("disk %s: %s has no bitmap for the checkpoint %s: the next backup needs it", e.Source, e.Location, e.Checkpoint)
}

func (e *MissingBitmapError) Unwrap() error { return errclass.Invalid }

// BitmapError reports that a bitmap could not be added to an image, or removed from it. Most often, a guest has the
// image open.
type BitmapError struct {
	// Source is the source's name.
	Source string
	Err    error
}

func (e *BitmapError) Error() string { return fmt.Sprintf("disk %s: %s", e.Source, e.Err) }
func (e *BitmapError) Unwrap() error { return e.Err }

// IncompleteError reports that a restore ended before its destination was complete. What it wrote is on stable storage.
type IncompleteError struct {
	// Resumable: the same request goes on where this one ended. Otherwise it begins anew.
	Resumable bool
	Err       error
}

func (e *IncompleteError) Error() string { return e.Err.Error() }
func (e *IncompleteError) Unwrap() error { return e.Err }

// OverlayError reports that the overlay of an export cannot be used: something else has it (errclass.Conflict), it
// belongs to another disk (errclass.Invalid), a part of it is missing (errclass.Corrupt), or its file system fails.
type OverlayError struct{ Err error }

func (e *OverlayError) Error() string { return e.Err.Error() }
func (e *OverlayError) Unwrap() error { return e.Err }
