package disk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/durable"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/nbd"
)

// exportTarget is an NBD export, or a qcow2 image behind one.
type exportTarget struct {
	export
	bytes int64
}

func openNBDTarget(ctx context.Context, uri string, bytes int64, o TargetOptions) (*exportTarget, error) {
	target, err := uriTarget(uri, o.Format)
	if err != nil {
		return nil, err
	}
	x, err := dialURI(ctx, uri, target, o.TLS, contexts(""))
	if err != nil {
		return nil, err
	}
	t := &exportTarget{export: *x, bytes: bytes}
	if err := t.prepare(ctx, identity{name: target.URI()}, o); err != nil {
		return nil, errors.Join(err, t.client.Close())
	}
	return t, nil
}

func (t *exportTarget) prepare(ctx context.Context, id identity, o TargetOptions) error {
	info := t.client.Info()
	if info.Flags.Has(nbd.FlagReadOnly) {
		return errorf(ErrInvalid, "target %s is exported read-only: export it writable", t.name)
	}
	if err := fits(t.name, info.Bytes, t.bytes, o.Larger); err != nil {
		return err
	}
	resumed, why, err := o.Journal.resume("", Raw, id, t.bytes)
	if err != nil || resumed {
		return err
	}
	if !o.Overwrite {
		data, err := t.data(ctx, extent.Extent{Length: info.Bytes})
		if err != nil {
			return err
		}
		if !data.Empty() {
			return occupied(t.name, fmt.Sprintf("has content, or does not say that it has none (%d bytes)", data.Bytes()), why)
		}
	}
	return o.Journal.begin(id)
}

// openQCOW2Target opens an image to write. A new one is created under another name, and gets its own once its journal
// knows it, so that it can never be mistaken for somebody else's image.
func openQCOW2Target(ctx context.Context, path string, info fs.FileInfo, bytes int64, o TargetOptions) (*exportTarget, error) {
	if info != nil && !info.Mode().IsRegular() {
		return nil, errorf(ErrInvalid, "target %s: a qcow2 image is restored to a file; to a device, restore raw", path)
	}
	for name := range tools { // before anything is created
		if _, err := program(name); err != nil {
			return nil, err
		}
	}
	image, err := openImageTarget(ctx, path, info == nil, bytes, o)
	if err != nil {
		return nil, err
	}
	// SIGTERM: the image is closed even if this process dies.
	server, client, err := serve(ctx, image, unix.SIGTERM, "")
	if err != nil {
		return nil, err
	}
	t := &exportTarget{export: export{name: path, client: client, server: server}, bytes: bytes}
	if err := fits(path, client.Info().Bytes, bytes, true); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// openImageTarget opens an image for which a restore has begun, or creates a new one.
func openImageTarget(ctx context.Context, path string, absent bool, bytes int64, o TargetOptions) (*imageChain, error) {
	opened, flags := path, 0
	if absent {
		if _, _, err := o.Journal.resume(path, QCOW2, identity{}, bytes); err != nil {
			return nil, err
		}
		opened, flags = path+".varve-new", os.O_CREATE|unix.O_NOFOLLOW
	}
	image, err := openWritableImage(opened, flags)
	if err != nil {
		return nil, err
	}
	image.path = path
	if absent {
		err = image.makeUnder(ctx, opened, bytes, o.Journal)
	} else {
		err = image.prepare(ctx, bytes, o)
	}
	if err != nil {
		return nil, errors.Join(err, image.close())
	}
	return image, nil
}

// openWritableImage opens a file that nobody uses, to create or continue an image in it.
func openWritableImage(path string, flags int) (*imageChain, error) {
	f, err := os.OpenFile(path, os.O_RDWR|flags, 0o600)
	if err != nil {
		return nil, full(path, err)
	}
	id, err := identityOf(f)
	if err == nil {
		err = unused(f)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &imageChain{path: path, files: []imageFile{{path: path, file: f, format: QCOW2, id: id}}, writable: true}, nil
}

// prepare prepares an existing file for the restore.
func (c *imageChain) prepare(ctx context.Context, bytes int64, o TargetOptions) error {
	resumed, why, err := o.Journal.resume(c.path, QCOW2, c.files[0].id, bytes)
	if err != nil {
		return err
	}
	if resumed {
		if err := c.check(); err != nil {
			return err
		}
		return repairImage(ctx, c)
	}
	info, err := c.files[0].file.Stat()
	if err != nil {
		return err
	}
	if info.Size() > 0 && !o.Overwrite {
		return occupied(c.path, fmt.Sprintf("has content (%d bytes)", info.Size()), why)
	}
	return c.make(ctx, bytes, o.Journal)
}

// makeUnder creates an empty image in a new file, which gets the image's name when it is ready.
func (c *imageChain) makeUnder(ctx context.Context, name string, bytes int64, j *Journal) error {
	if err := c.make(ctx, bytes, j); err != nil {
		return errors.Join(err, os.Remove(name))
	}
	if err := os.Rename(name, c.path); err != nil {
		return err
	}
	return durable.Sync(filepath.Dir(c.path))
}

// make creates an empty image, makes it durable, and begins its journal.
func (c *imageChain) make(ctx context.Context, bytes int64, j *Journal) error {
	if err := j.discard(); err != nil {
		return err
	}
	f := c.files[0]
	if err := createImage(ctx, f.file, bytes); err != nil {
		return fmt.Errorf("target %s: %w", c.path, err)
	}
	return errors.Join(f.file.Sync(), durable.Sync(filepath.Dir(c.path)), j.begin(f.id))
}

// Bytes implements Target.
func (t *exportTarget) Bytes() int64 { return t.bytes }

// WriteAt implements Target.
func (t *exportTarget) WriteAt(ctx context.Context, p []byte, offset int64) error {
	if err := within(t.name, t.bytes, offset, len(p)); err != nil {
		return err
	}
	if n := t.padded(offset+int64(len(p))) - offset; n > int64(len(p)) {
		p = append(slices.Clone(p), make([]byte, n-int64(len(p)))...)
	}
	return t.failed(t.client.WriteAt(ctx, p, offset, 0))
}

// failed names the target in an error of the client, and says what to do about it.
func (t *exportTarget) failed(err error) error {
	if isFull(err) {
		return full(t.name, err)
	}
	return t.explain(err)
}

// padded returns end, or, if that is the end of the disk, the end of the export's block around it: the export takes
// only whole blocks. The export is larger than the disk then, and the rest of that block becomes zero.
func (t *exportTarget) padded(end int64) int64 {
	if end != t.bytes {
		return end
	}
	block := int64(t.client.Info().Block.Minimum)
	return min((end+block-1)/block*block, t.client.Info().Bytes)
}

// Zero implements Target.
func (t *exportTarget) Zero(ctx context.Context, e extent.Extent) error {
	if err := within(t.name, t.bytes, e.Offset, int(e.Length)); err != nil {
		return err
	}
	e.Length = t.padded(e.End()) - e.Offset
	data, err := t.data(ctx, e)
	if err != nil {
		return err
	}
	for part := range data.All() {
		if err := t.zero(ctx, part); err != nil {
			return t.failed(err)
		}
	}
	return nil
}

// data returns the part of e that may be nonzero.
func (t *exportTarget) data(ctx context.Context, e extent.Extent) (extent.Set, error) {
	if e.Empty() || len(t.client.Info().Contexts) == 0 {
		return extent.NewSet(e), nil
	}
	set, err := t.client.Data(ctx, e)
	return set, t.explain(err)
}

func (t *exportTarget) zero(ctx context.Context, e extent.Extent) error {
	if t.client.Info().Flags.Has(nbd.FlagSendWriteZeroes) {
		return t.client.WriteZeroes(ctx, e, 0)
	}
	buf := make([]byte, min(e.Length, 16*granuleBytes))
	for at := e.Offset; at < e.End(); at += int64(len(buf)) {
		buf = buf[:min(int64(len(buf)), e.End()-at)]
		if err := t.client.WriteAt(ctx, buf, at, 0); err != nil {
			return err
		}
	}
	return nil
}

// Sync implements Target.
func (t *exportTarget) Sync(ctx context.Context) error {
	if !t.client.Info().Flags.Has(nbd.FlagSendFlush) {
		return nil
	}
	return t.failed(t.client.Flush(ctx))
}

// Close implements Target.
func (t *exportTarget) Close() error { return errors.Join(t.disconnect(), t.end()) }
