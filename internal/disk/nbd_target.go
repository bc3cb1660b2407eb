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
	resumed, why, err := o.Journal.resume("", id, t.bytes)
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

// openQCOW2Target writes an image. A new one is made under another name and gets its own when its journal knows it, so
// that there is no moment in which it could not be told from an image of somebody else.
func openQCOW2Target(ctx context.Context, path string, info fs.FileInfo, bytes int64, o TargetOptions) (*exportTarget, error) {
	if info != nil && !info.Mode().IsRegular() {
		return nil, errorf(ErrInvalid, "target %s: a qcow2 image is restored to a file; to a device, restore raw", path)
	}
	if _, err := program("qemu-nbd"); err != nil { // before anything is made
		return nil, err
	}
	var id identity
	var err error
	if info != nil {
		if id, err = pathIdentity(path); err != nil {
			return nil, err
		}
	}
	resumed, why, err := o.Journal.resume(path, id, bytes)
	switch {
	case err != nil:
		return nil, err
	case resumed:
		err = repair(ctx, path)
	case info != nil && info.Size() > 0 && !o.Overwrite:
		err = occupied(path, fmt.Sprintf("has content (%d bytes)", info.Size()), why)
	default:
		err = newImage(ctx, path, info == nil, bytes, o.Journal)
	}
	if err != nil {
		return nil, err
	}
	// SIGTERM: when this process dies, the image is closed all the same.
	server, client, err := serve(ctx, path, unix.SIGTERM, contexts(""), "--discard=unmap")
	if err != nil {
		return nil, err
	}
	t := &exportTarget{export: export{name: path, client: client, server: server}, bytes: bytes}
	if err := fits(path, client.Info().Bytes, bytes, true); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// newImage makes an empty image, and the journal for it.
func newImage(ctx context.Context, path string, absent bool, bytes int64, j *Journal) error {
	if err := j.discard(); err != nil {
		return err
	}
	made := path
	if absent {
		made = path + ".varve-new"
	}
	err := create(ctx, made, bytes)
	if err == nil {
		err = beginImage(made, j)
	}
	if err != nil {
		if absent {
			_ = os.Remove(made) // if it is there
		}
		return fmt.Errorf("target %s: %w", path, err)
	}
	if absent {
		if err := os.Rename(made, path); err != nil {
			return err
		}
	}
	return durable.Sync(filepath.Dir(path))
}

// beginImage makes durable what was just made, and begins its journal.
func beginImage(path string, j *Journal) error {
	id, err := pathIdentity(path)
	if err != nil {
		return err
	}
	return errors.Join(durable.Sync(path), j.begin(id))
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

// padded is end, or if that is the disk's, the end of the export's block around it: the export takes only whole blocks. It is
// larger than the disk then, and the rest of that block becomes zero.
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

// data is the part of e that may be other than zero.
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
