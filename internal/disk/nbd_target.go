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
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/nbd"
)

// exportTarget is an NBD export, or a qcow2 image behind one.
type exportTarget struct {
	export
	bytes int64
	// layer says that something else may be below, where the image has nothing.
	layer bool
}

func openNBDTarget(ctx context.Context, uri string, bytes int64, o TargetOptions) (*exportTarget, error) {
	target, err := uriTarget(uri, o.Format)
	if err != nil {
		return nil, err
	}
	x, err := dialURI(ctx, uri, target, o.TLS, sourceContexts(""))
	if err != nil {
		return nil, err
	}
	t := &exportTarget{export: *x, bytes: bytes}
	if err := t.prepareExport(ctx, identity{name: target.URI()}, o); err != nil {
		return nil, errors.Join(err, t.client.Close())
	}
	return t, nil
}

func (t *exportTarget) prepareExport(ctx context.Context, id identity, o TargetOptions) error {
	info := t.client.Info()
	if info.Flags.Has(nbd.FlagReadOnly) {
		return errclass.Errorf(errclass.Invalid, "target %s is exported read-only: export it writable", t.name)
	}
	if err := checkFits(t.name, info.Bytes, t.bytes, o.Larger); err != nil {
		return err
	}
	resumed, why, err := o.Journal.resumeTarget("", Raw, id, t.bytes)
	if err != nil || resumed {
		return err
	}
	if !o.Overwrite {
		data, err := t.dataWithin(ctx, extent.Extent{Length: info.Bytes})
		if err != nil {
			return err
		}
		if !data.Empty() {
			return errOccupied(t.name, fmt.Sprintf("has content, or does not say that it has none (%d bytes)", data.Bytes()), why)
		}
	}
	return o.Journal.beginTarget(id)
}

// openQCOW2Target opens an image to write. A new one is created under another name, and gets its own once its journal
// knows it, so that it can never be mistaken for somebody else's image.
func openQCOW2Target(ctx context.Context, path string, info fs.FileInfo, bytes int64, o TargetOptions) (*exportTarget, error) {
	if info != nil && !info.Mode().IsRegular() {
		return nil, errclass.Errorf(ErrArgument, "target %s: a qcow2 image is restored to a file; to a device, restore raw", path)
	}
	for name := range tools { // before anything is created
		if _, err := findProgram(name); err != nil {
			return nil, err
		}
	}
	image, err := openImageTarget(ctx, path, info == nil, bytes, o)
	if err != nil {
		return nil, err
	}
	// SIGTERM: the image is closed even if this process dies.
	server, client, err := startServer(ctx, image, unix.SIGTERM, "")
	if err != nil {
		return nil, err
	}
	t := &exportTarget{export: export{name: path, client: client, server: server}, bytes: bytes, layer: o.Layer != nil}
	if err := checkFits(path, client.Info().Bytes, bytes, true); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// openImageTarget opens an image for which a restore has begun, or creates a new one.
func openImageTarget(ctx context.Context, path string, absent bool, bytes int64, o TargetOptions) (*imageChain, error) {
	opened, flags := path, 0
	if absent {
		if _, _, err := o.Journal.resumeTarget(path, QCOW2, identity{}, bytes); err != nil {
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
		err = image.makeUnder(ctx, opened, bytes, o)
	} else {
		err = image.prepareForRestore(ctx, bytes, o)
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
		return nil, explainFull(path, err)
	}
	id, err := identityOf(f)
	if err == nil {
		err = checkUnused(f)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &imageChain{path: path, files: []imageFile{{path: path, file: f, format: QCOW2, id: id}}, writable: true}, nil
}

// prepareForRestore prepares an existing file for the restore.
func (c *imageChain) prepareForRestore(ctx context.Context, bytes int64, o TargetOptions) error {
	resumed, why, err := o.Journal.resumeTarget(c.path, QCOW2, c.files[0].id, bytes)
	if err != nil {
		return err
	}
	if resumed {
		if o.Layer != nil { // It may have been named just before the interruption.
			if err := renameBacking(ctx, c.files[0].file, "", ""); err != nil {
				return err
			}
		}
		if err := c.checkHeaders(); err != nil {
			return err
		}
		return repairImage(ctx, c)
	}
	info, err := c.files[0].file.Stat()
	if err != nil {
		return err
	}
	if info.Size() > 0 && !o.Overwrite {
		return errOccupied(c.path, fmt.Sprintf("has content (%d bytes)", info.Size()), why)
	}
	return c.makeEmpty(ctx, bytes, o)
}

// makeUnder creates an empty image in a new file, which gets the image's name when it is ready.
func (c *imageChain) makeUnder(ctx context.Context, name string, bytes int64, o TargetOptions) error {
	if err := c.makeEmpty(ctx, bytes, o); err != nil {
		return errors.Join(err, os.Remove(name))
	}
	if err := os.Rename(name, c.path); err != nil {
		return err
	}
	return durable.Sync(filepath.Dir(c.path))
}

// makeEmpty creates an empty image, makes it durable, and begins its journal.
func (c *imageChain) makeEmpty(ctx context.Context, bytes int64, o TargetOptions) error {
	j := o.Journal
	if err := j.removeFile(); err != nil {
		return err
	}
	f := c.files[0]
	if err := createImage(ctx, f.file, bytes, o.Layer.clusterBytes()); err != nil {
		return fmt.Errorf("target %s: %w", c.path, err)
	}
	return errors.Join(f.file.Sync(), durable.Sync(filepath.Dir(c.path)), j.beginTarget(f.id))
}

// Bytes implements Target.
func (t *exportTarget) Bytes() int64 { return t.bytes }

// WriteAt implements Target.
func (t *exportTarget) WriteAt(ctx context.Context, p []byte, offset int64) error {
	if err := checkWithin(t.name, t.bytes, offset, len(p)); err != nil {
		return err
	}
	if n := t.padToBlock(offset+int64(len(p))) - offset; n > int64(len(p)) {
		p = append(slices.Clone(p), make([]byte, n-int64(len(p)))...)
	}
	return t.targetError(t.client.WriteAt(ctx, p, offset, 0))
}

// targetError names the target in an error of the client, and says what to do about it.
func (t *exportTarget) targetError(err error) error {
	if errclass.IsFull(err) {
		return explainFull(t.name, err)
	}
	return t.explainError(err)
}

// padToBlock returns end, or, if that is the end of the disk, the end of the export's block around it: the export takes
// only whole blocks. The export is larger than the disk then, and the rest of that block becomes zero.
func (t *exportTarget) padToBlock(end int64) int64 {
	if end != t.bytes {
		return end
	}
	block := int64(t.client.Info().Block.Minimum)
	return min((end+block-1)/block*block, t.client.Info().Bytes)
}

// Zero implements Target.
func (t *exportTarget) Zero(ctx context.Context, e extent.Extent) error {
	if err := checkWithin(t.name, t.bytes, e.Offset, int(e.Length)); err != nil {
		return err
	}
	e.Length = t.padToBlock(e.End()) - e.Offset
	data := extent.NewSet(e)
	if !t.layer {
		var err error
		if data, err = t.dataWithin(ctx, e); err != nil {
			return err
		}
	}
	for part := range data.All() {
		if err := t.zeroExtent(ctx, part); err != nil {
			return t.targetError(err)
		}
	}
	return nil
}

// dataWithin returns the part of e that may be nonzero.
func (t *exportTarget) dataWithin(ctx context.Context, e extent.Extent) (extent.Set, error) {
	if e.Empty() || len(t.client.Info().Contexts) == 0 {
		return extent.NewSet(e), nil
	}
	set, err := t.client.Data(ctx, e)
	return set, t.explainError(err)
}

func (t *exportTarget) zeroExtent(ctx context.Context, e extent.Extent) error {
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
	return t.targetError(t.client.Flush(ctx))
}

// Close implements Target.
func (t *exportTarget) Close() error { return errors.Join(t.disconnect(), t.endServer()) }
