package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/varvebackup/varve/internal/errclass"
)

// BackingFile is a file that a qcow2 image may read: its backing file, or the backing file of the one before it.
type BackingFile struct {
	// Format is the file's. It is neither guessed nor taken from an image.
	Format Format
	Path   string
}

// imageFile is an open file of an image: the image itself or a backing file.
type imageFile struct {
	path   string
	file   *os.File
	format Format
	id     identity
	// device says that it is a block device.
	device bool
}

// imageChain is a qcow2 image and its backing files, from the image down. The files stay open from the check of their
// headers until the server that reads them has ended, so that replacing a file in between has no effect.
type imageChain struct {
	path     string
	files    []imageFile
	writable bool
}

// openImageChain opens an image and the backing files that the caller allows, in order. It refuses an image whose
// headers name any other file, or place data outside of the image.
func openImageChain(path string, allowed []BackingFile) (*imageChain, error) {
	c := &imageChain{path: path}
	err := c.openFile(BackingFile{Format: QCOW2, Path: path})
	for _, b := range allowed {
		if err == nil {
			err = c.openFile(b)
		}
	}
	if err == nil {
		err = c.checkHeaders()
	}
	if err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

// openFile adds a file.
func (c *imageChain) openFile(named BackingFile) error {
	path, err := absolutePath(named.Path, named.Format)
	if err != nil {
		return err
	}
	f, id, err := openToRead(path, false)
	if err != nil {
		return err
	}
	opened := imageFile{path: path, file: f, format: named.Format, id: id}
	c.files = append(c.files, opened)
	info, err := f.Stat()
	if err != nil {
		return err
	}
	c.files[len(c.files)-1].device = !info.Mode().IsRegular()
	return nil
}

// checkHeaders compares each header with the next file in the chain.
func (c *imageChain) checkHeaders() error {
	for i := range c.files {
		var below *imageFile
		if i+1 < len(c.files) {
			below = &c.files[i+1]
		}
		if err := c.files[i].checkBacking(below); err != nil {
			return err
		}
	}
	return nil
}

// checkBacking refuses a file that names other files than the backing file below, or does not name that one. nil means that
// there is none.
func (f *imageFile) checkBacking(below *imageFile) error {
	header := &imageHeader{}
	if f.format == QCOW2 {
		var err error
		if header, err = readImageHeader(f.file); err != nil {
			return errclass.Errorf(errclass.Invalid, "disk %s is not a qcow2 image that can be read: %w", f.path, err)
		}
	}
	switch {
	case header.dataFile:
		return errclass.Errorf(errclass.Invalid, "disk %s keeps its data in another file, which is not supported, because an image could name any file of this host: if you trust it, convert it with qemu-img first", f.path)
	case header.encrypted:
		return errclass.Errorf(errclass.Invalid, "disk %s is an encrypted qcow2 image, which is not supported", f.path)
	case !header.backing && below != nil:
		return errclass.Errorf(errclass.Invalid, "disk %s has no backing file, but %s was given as its backing file", f.path, below.path)
	case header.backing && below == nil:
		return errclass.Errorf(ErrBacking, "disk %s names the backing file %q, which is not read unless you allow it, because an image could name any file of this host: if you trust it, name the file and its format", f.path, header.backingName)
	case header.backing:
		return header.checkBacking(f.path, below)
	}
	return nil
}

// checkBacking compares the backing file that the header of the image at path names with the allowed one.
func (h *imageHeader) checkBacking(path string, allowed *imageFile) error {
	switch {
	case hasProtocol(h.backingName):
		return errclass.Errorf(errclass.Invalid, "disk %s names the backing file %q: only the path of a file is supported", path, h.backingName)
	case h.backingFormat != "" && Format(h.backingFormat) != allowed.format:
		return errclass.Errorf(errclass.Invalid, "disk %s says that its backing file has the format %q, and not %s", path, h.backingFormat, allowed.format)
	}
	name := h.backingName
	if !filepath.IsAbs(name) {
		name = filepath.Join(filepath.Dir(path), name)
	}
	named, err := os.Stat(name)
	if err != nil {
		return errclass.Errorf(errclass.Invalid, "disk %s names the backing file %q: %w", path, h.backingName, err)
	}
	opened, err := allowed.file.Stat()
	if err != nil {
		return err
	}
	if !os.SameFile(named, opened) {
		return errclass.Errorf(errclass.Invalid, "disk %s names the backing file %q, and not %s, which was given as its backing file", path, h.backingName, allowed.path)
	}
	return nil
}

// chainIdentity names the image together with its backing files. Nobody should write to a backing file while other images
// are on top of it. If somebody does, or replaces the file, the identity changes, because the bitmaps of the image on
// top do not record that.
func (c *imageChain) chainIdentity() (string, error) {
	name := c.files[0].id.name
	for _, below := range c.files[1:] {
		info, err := below.file.Stat()
		if err != nil {
			return "", err
		}
		name += "/" + below.id.name
		if !below.device { // A device has no modification time.
			name += "@" + info.ModTime().UTC().Format(time.RFC3339Nano)
		}
	}
	return name, nil
}

// close closes the files.
func (c *imageChain) close() error {
	var all []error
	for _, f := range c.files {
		unlockFile(f.file)
		all = append(all, f.file.Close())
	}
	c.files = nil
	return errors.Join(all...)
}

// openFiles returns the open files, in the order of the chain.
func (c *imageChain) openFiles() []*os.File {
	var all []*os.File
	for _, f := range c.files {
		all = append(all, f.file)
	}
	return all
}

// topNode is the name of the image's own node.
const topNode = "image0"

// blockdevNodes returns the chain in the form that blockdev-add takes. A child has the chain's files as its first descriptors.
// The nodes name every driver and every file, so that nothing depends on the headers.
func (c *imageChain) blockdevNodes() []map[string]any {
	var all []map[string]any
	for i := len(c.files) - 1; i >= 0; i-- {
		f := &c.files[i]
		protocol := map[string]any{
			"driver": "file", "node-name": fmt.Sprintf("file%d", i), "filename": descriptorPath(i), "read-only": !c.writable,
		}
		if f.device {
			protocol["driver"] = "host_device"
		}
		format := map[string]any{
			"driver": string(f.format), "node-name": fmt.Sprintf("image%d", i), "file": protocol["node-name"], "read-only": !c.writable,
		}
		if c.writable {
			protocol["discard"], format["discard"] = "unmap", "unmap"
		}
		if f.format == QCOW2 {
			format["backing"] = nil
			if i+1 < len(c.files) {
				format["backing"] = fmt.Sprintf("image%d", i+1)
			}
		}
		all = append(all, protocol, format)
	}
	return all
}
