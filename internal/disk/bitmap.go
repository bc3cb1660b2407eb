package disk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/errclass"
)

// Bitmap is a QEMU dirty bitmap in a qcow2 image. It has what was written since it was added, provided that only QEMU
// wrote to the image and nobody cleared the bitmap.
type Bitmap struct {
	Name string
	// Saved: its last user ended in order, so that the bitmap has what that user wrote.
	Saved bool
	// Recording: the bitmap records the writes of whoever opens the image for writing.
	Recording bool
}

// Bitmaps lists the bitmaps of a qcow2 image itself, not those of its backing files.
func Bitmaps(ctx context.Context, image string) ([]Bitmap, error) {
	f, err := openForBitmaps(image, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	// -U: the image may be open elsewhere. Whoever reads it with a bitmap takes its lock.
	out, err := qemuImgOutput(ctx, f, "info", "-U", "--output=json", overriddenImage)
	if err != nil {
		return nil, fmt.Errorf("list the bitmaps of %s: %w", image, err)
	}
	var info struct {
		Format struct {
			Data struct {
				Bitmaps []struct {
					Name  string   `json:"name"`
					Flags []string `json:"flags"`
				} `json:"bitmaps"`
			} `json:"data"`
		} `json:"format-specific"`
	}
	if err := json.Unmarshal(out, &info); err != nil {
		return nil, fmt.Errorf("list the bitmaps of %s: qemu-img info: %w", image, err)
	}
	var all []Bitmap
	for _, b := range info.Format.Data.Bitmaps {
		all = append(all, Bitmap{Name: b.Name, Saved: !slices.Contains(b.Flags, "in-use"), Recording: slices.Contains(b.Flags, "auto")})
	}
	return all, nil
}

// AddBitmap adds an empty bitmap that records from now on. It fails if the image already has one of that name, or is
// open elsewhere.
func AddBitmap(ctx context.Context, image, name string) error {
	return changeBitmap(ctx, "--add", image, name)
}

// RemoveBitmap removes a bitmap. It fails if the image is open elsewhere.
func RemoveBitmap(ctx context.Context, image, name string) error {
	return changeBitmap(ctx, "--remove", image, name)
}

func changeBitmap(ctx context.Context, what, image, name string) error {
	f, err := openForBitmaps(image, os.O_RDWR)
	if err != nil {
		return err
	}
	err = qemuImg(ctx, f, "bitmap", what, overriddenImage, name)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("bitmap %s of %s: %w", name, image, err)
	}
	return nil
}

// openForBitmaps opens a qcow2 image to list or change its bitmaps. QEMU is told not to open a backing file. It would
// open a data file, so an image with one is refused.
func openForBitmaps(image string, flags int) (*os.File, error) {
	path, err := filepath.Abs(image)
	if err != nil {
		return nil, err
	}
	if _, err := statDisk(path); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, flags|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	header, err := readImageHeader(f)
	switch {
	case err != nil:
		err = errclass.Errorf(errclass.Invalid, "disk %s is not a qcow2 image that can be read: %w", path, err)
	case header.dataFile || header.encrypted:
		err = (&imageFile{path: path, file: f, format: QCOW2}).checkBacking(nil)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// libvirtBitmap is the prefix that libvirt puts before the disk's target to name the bitmap in the export of a backup
// job, unless it is told otherwise.
const libvirtBitmap = "backup-"

// noBitmap returns an error that says which bitmaps a disk has instead, and what to do.
func noBitmap(disk, bitmap string, names []string) error {
	if len(names) == 0 {
		return errclass.Errorf(ErrNotFound, "disk %s has no bitmap %s (it has none): read the whole disk, without a bitmap", disk, bitmap)
	}
	advice := "name one of its own, or read the whole disk"
	for _, name := range names {
		if target, ok := strings.CutPrefix(name, libvirtBitmap); ok {
			advice = fmt.Sprintf("if this is a backup job of libvirt, begin it again with <disk name='%s' exportbitmap='%s'> in its XML, so that the bitmap has its own name", target, bitmap)
		}
	}
	return errclass.Errorf(ErrNotFound, "disk %s has no bitmap %s (it has %s): %s", disk, bitmap, strings.Join(names, ", "), advice)
}
