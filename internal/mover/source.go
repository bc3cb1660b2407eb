package mover

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/varvebackup/varve/internal/disk"
	"github.com/varvebackup/varve/internal/repository"
)

// Source is a disk to back up.
type Source struct {
	// Name is the disk's name in the restore point.
	Name string
	// Location is the path of a file or block device, or an NBD URI. Options say how to read it.
	Location string
	Options  disk.SourceOptions
	// Open opens a disk that has no Location, such as the far end of a launcher's tunnel. It is nil for all others. The
	// backup closes what it returns. Options.Bitmap then only names what the disk's Changes are counted from.
	Open func(ctx context.Context) (disk.Source, error)
	// Identity distinguishes the disk from every other one of this name, such as the UID of a claim; "": what the disk
	// itself says (disk.Source.Identity).
	Identity string
	// Checkpoint is the name of the backup's moment in the disk's change tracking, or "". No other moment may ever have
	// the same name.
	Checkpoint string
	// Exclusive: Options.Bitmap exists on this disk alone, and never existed on another one. Otherwise the repository
	// compares parts of the disk with its parent, to notice that it is another disk.
	Exclusive bool
	// Check is called with the opened disk after all of it was read, before the restore point is visible. An error fails
	// the backup, and there is no restore point. It may be nil.
	Check func(ctx context.Context, opened disk.Source) error
}

// isImage reports whether the source is a qcow2 image in a file, which can hold bitmaps.
func (s *Source) isImage() bool { return s.Open == nil && s.Options.Format == disk.QCOW2 }

// openedSources are sources that are being read.
type openedSources struct {
	// disks describe the sources to the repository, in the same order.
	disks  []repository.DiskSource
	opened []disk.Source
	// checks are those of the sources that have one.
	checks []func(context.Context) error
}

// openSources opens the disks, and asks each of them what it holds and what has changed.
func openSources(ctx context.Context, sources []Source) (*openedSources, error) {
	out := &openedSources{}
	for i := range sources {
		if err := out.openSource(ctx, &sources[i]); err != nil {
			return nil, errors.Join(err, out.Close())
		}
	}
	return out, nil
}

func (o *openedSources) openSource(ctx context.Context, s *Source) error {
	if err := s.checkCheckpoint(ctx); err != nil {
		return err
	}
	opened, err := s.openDisk(ctx)
	if err != nil {
		return &OpenError{Source: s.Name, Err: err}
	}
	o.opened = append(o.opened, opened)
	described, err := s.describeDisk(ctx, opened)
	if err != nil {
		return fmt.Errorf("disk %s: %w", s.Name, err)
	}
	o.disks = append(o.disks, described)
	if s.Check != nil {
		o.checks = append(o.checks, func(ctx context.Context) error {
			if err := s.Check(ctx, opened); err != nil {
				return fmt.Errorf("check disk %s: %w", s.Name, err)
			}
			return nil
		})
	}
	return nil
}

// checkAll calls the checks of the sources.
func (o *openedSources) checkAll(ctx context.Context) error {
	for _, check := range o.checks {
		if err := check(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (s *Source) openDisk(ctx context.Context) (disk.Source, error) {
	if s.Open != nil {
		return s.Open(ctx)
	}
	return disk.OpenSource(ctx, s.Location, s.Options)
}

// describeDisk returns what the repository needs to know about a source that was opened.
func (s *Source) describeDisk(ctx context.Context, opened disk.Source) (repository.DiskSource, error) {
	d := repository.DiskSource{Name: s.Name, Bytes: opened.Bytes(), Reader: opened, Identity: cmp.Or(s.Identity, opened.Identity()), Change: s.Checkpoint}
	var err error
	if d.Data, err = opened.Data(ctx); err != nil {
		return d, err
	}
	changed, err := opened.Changes(ctx)
	if err != nil {
		return d, err
	}
	if changed != nil {
		d.Changes = &repository.Changes{Since: s.Options.Bitmap, Set: *changed, Exclusive: s.Exclusive}
	}
	return d, nil
}

// Close releases the disks.
func (o *openedSources) Close() error {
	var failures []error
	for _, s := range o.opened {
		failures = append(failures, s.Close())
	}
	return errors.Join(failures...)
}
