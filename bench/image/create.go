package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"k8s.io/utils/clock"

	"github.com/varvebackup/varve/bench/report"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/handover"
	"github.com/varvebackup/varve/internal/store/names"
	"github.com/varvebackup/varve/internal/store/source"
)

// baseImage is the image from which copies and clones are made.
const baseImage = "bench"

// createImage makes the first copy of an image as a source pod and its store do: it writes what the server has to the
// head's device, and seals it.
func (b *bench) createImage(ctx context.Context, n *node, name, file string) (usage, error) {
	var sealed time.Duration
	u, err := measure(func() error {
		record, err := b.runSource(ctx, n, name, file)
		if err != nil {
			return err
		}
		start := time.Now()
		err = n.disk.Snapshot(ctx, names.SourceHead(name), names.Image(name, name), disk.Seal{
			UID: disk.UID(name), Kind: disk.KindImage, Bytes: record.Bytes,
		})
		sealed = time.Since(start)
		return err
	})
	if err != nil {
		return usage{}, err
	}
	b.logUsage(fmt.Sprintf("image from %s (%.2f s of it to seal)", b.content.url(file)[len(b.content.address):],
		sealed.Seconds()), u)
	return u, errors.Join(n.disk.Delete(ctx, names.SourceHead(name)), n.checkImage(ctx, name, b.content))
}

// runSource makes a head, and writes the image to its device.
func (b *bench) runSource(ctx context.Context, n *node, name, file string) (handover.Record, error) {
	head := names.SourceHead(name)
	err := n.disk.Create(ctx, head, disk.Source{
		UID: disk.UID(names.SourceHandle(name)), Volume: disk.UID(name), Bytes: handover.DeviceBytes,
	})
	if err != nil {
		return handover.Record{}, err
	}
	a, err := b.attach(ctx, n, head)
	if err != nil {
		return handover.Record{}, err
	}
	err = source.Run(ctx, source.Options{
		Device: a.device.Path, Scratch: b.work, Log: slog.New(slog.DiscardHandler), Clock: clock.RealClock{},
		Config: handover.Source{Type: handover.TypeDownload, URL: b.content.url(file)}.String(),
	})
	var record handover.Record
	if err == nil {
		record, err = readRecord(a.lease.Path())
	}
	return record, errors.Join(err, b.detach(ctx, a))
}

func readRecord(file string) (handover.Record, error) {
	f, err := os.Open(file)
	if err != nil {
		return handover.Record{}, err
	}
	record, err := handover.Read(f)
	if err == nil && !record.Complete {
		err = errors.New("the source has not completed its record")
	}
	return record, errors.Join(err, f.Close())
}

// converted is how long qemu-img took to write an image and make it durable, and how long sha512sum took to read it
// back from the disk.
type converted struct{ copied, hashed usage }

// convertImage makes the image with qemu-img.
func (b *bench) convertImage(ctx context.Context, n *node, file, format string) (c converted, err error) {
	to := n.peerFile("peer.raw")
	c.copied, err = measure(func() error {
		if _, err := runTool(ctx, "qemu-img", "convert", "-f", format, "-O", "raw", file, to); err != nil {
			return err
		}
		return n.sync()
	})
	if err != nil {
		return converted{}, err
	}
	if err := dropCached(to); err != nil {
		return converted{}, err
	}
	c.hashed, err = measure(func() error {
		_, err := runTool(ctx, "sha512sum", to)
		return err
	})
	b.logUsage("qemu-img from "+format, c.copied)
	b.logUsage("sha512sum of it", c.hashed)
	return c, errors.Join(err, os.Remove(to))
}

// compareCreation makes images from a file in rounds. The file is in the page cache, as what a network brings is.
func (b *bench) compareCreation(ctx context.Context, file, format string) (ours usages, theirs []converted, err error) {
	const name = "created"
	prepare := func() error { return errors.Join(b.first.settle(ctx), readFile(file, io.Discard)) }
	err = inRounds(b.rounds, func() error {
		if err := prepare(); err != nil {
			return err
		}
		u, err := b.createImage(ctx, b.first, name, file)
		ours = append(ours, u)
		if err != nil {
			return err
		}
		return b.first.disk.Delete(ctx, names.Image(name, name))
	}, func() error {
		if err := prepare(); err != nil {
			return err
		}
		c, err := b.convertImage(ctx, b.first, file, format)
		theirs = append(theirs, c)
		return err
	})
	return ours, theirs, err
}

func (b *bench) measureCreate(ctx context.Context) ([]report.Row, error) {
	ours, theirs, err := b.compareCreation(ctx, b.content.raw, "raw")
	if err != nil {
		return nil, err
	}
	var copied, hashed usages
	for _, c := range theirs {
		copied = append(copied, c.copied)
		hashed = append(hashed, usage{c.copied.wall + c.hashed.wall, c.copied.cpu + c.hashed.cpu})
	}
	what := fmt.Sprintf("image of %d MiB, half of it data, raw over HTTP, read back, hashed and sealed", b.imageMiB)
	return []report.Row{
		secondsRow("image-create", what, ours, "qemu-img convert from the file (it has no HTTP), synced", copied),
		secondsRow("image-create-hashed", "the same", ours, "the same, read back by sha512sum", hashed),
	}, nil
}

func (b *bench) measureCreateQCOW2(ctx context.Context) ([]report.Row, error) {
	ours, theirs, err := b.compareCreation(ctx, b.content.qcow2, "qcow2")
	if err != nil {
		return nil, err
	}
	var copied usages
	for _, c := range theirs {
		copied = append(copied, c.copied)
	}
	what := fmt.Sprintf("image of %d MiB, half of it data, qcow2 over HTTP, read back, hashed and sealed", b.imageMiB)
	return []report.Row{
		secondsRow("image-create-qcow2", what, ours, "qemu-img convert from the file (it has no HTTP), synced", copied),
	}, nil
}

// makeBase makes the image from which copies and clones are made, if it is not there.
func (b *bench) makeBase(ctx context.Context) error {
	if b.made {
		return nil
	}
	_, err := b.createImage(ctx, b.first, baseImage, b.content.raw)
	b.made = err == nil
	return err
}

// basePath returns the file of that image.
func (b *bench) basePath(ctx context.Context) (string, error) {
	lease, err := b.first.disk.Open(ctx, names.Image(baseImage, baseImage))
	if err != nil {
		return "", err
	}
	return lease.Path(), lease.Close()
}
