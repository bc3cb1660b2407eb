package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/varvebackup/varve/bench/report"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/names"
)

// cloned is what the clones of one round took: the seconds of each, and the space of all.
type cloned struct {
	each report.Sample
	mib  float64
}

// measureClones makes many clones of the image and attaches each.
func (b *bench) measureClones(ctx context.Context) ([]report.Row, error) {
	if err := b.makeBase(ctx); err != nil {
		return nil, err
	}
	from, err := b.basePath(ctx)
	if err != nil {
		return nil, err
	}
	var ours, theirs []cloned
	err = inRounds(b.rounds, func() error {
		var heads []*attached
		c, err := b.repeatCloning(ctx, func(i int) error {
			a, err := b.cloneImage(ctx, cloneName(i))
			if err == nil {
				heads = append(heads, a)
			}
			return err
		})
		ours = append(ours, c)
		return errors.Join(err, b.deleteClones(ctx, heads))
	}, func() error {
		c, err := b.repeatCloning(ctx, func(i int) error {
			_, err := runTool(ctx, "cp", "--reflink=always", from, b.first.peerFile(cloneName(i)))
			return err
		})
		theirs = append(theirs, c)
		for i := range b.clones {
			err = errors.Join(err, os.Remove(b.first.peerFile(cloneName(i))))
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	const seconds = "s"
	return []report.Row{
		report.Smaller("image-clone", fmt.Sprintf("a durable clone of that image with its loop device, the median of %d",
			b.clones), seconds, sampleOf(ours, medianSeconds), "cp --reflink=always, nothing durable",
			sampleOf(theirs, medianSeconds)),
		report.Smaller("image-clone-worst", "the slowest of them", seconds, sampleOf(ours, worstSeconds), "aim",
			report.Sample{1}),
		report.Smaller("image-clone-bytes", "what all of them take on the disk", "MiB", sampleOf(ours, spaceMiB),
			"cp --reflink=always", sampleOf(theirs, spaceMiB)),
	}, nil
}

func cloneName(i int) string { return fmt.Sprintf("clone-%d", i) }

func medianSeconds(c cloned) float64 { return c.each.Median() }
func worstSeconds(c cloned) float64  { return slices.Max(c.each) }
func spaceMiB(c cloned) float64      { return c.mib }

func sampleOf(all []cloned, figure func(cloned) float64) report.Sample {
	var s report.Sample
	for _, c := range all {
		s = append(s, figure(c))
	}
	return s
}

// repeatCloning calls clone for each clone.
func (b *bench) repeatCloning(ctx context.Context, clone func(i int) error) (c cloned, err error) {
	before, err := b.first.usedBytes(ctx)
	if err != nil {
		return cloned{}, err
	}
	for i := range b.clones {
		u, err := measure(func() error { return clone(i) })
		if err != nil {
			return cloned{}, err
		}
		c.each = append(c.each, u.wall.Seconds())
	}
	after, err := b.first.usedBytes(ctx)
	c.mib = float64(after-before) / float64(mib)
	fmt.Fprintf(b.log, "  %d clones: median %.4f s, worst %.4f s, %.2f MiB\n", b.clones, c.each.Median(),
		slices.Max(c.each), c.mib)
	return c, err
}

// cloneImage makes a volume from the image, and attaches it.
func (b *bench) cloneImage(ctx context.Context, handle string) (*attached, error) {
	err := b.first.disk.Create(ctx, names.Head(handle), disk.Source{
		UID: disk.UID(handle), Volume: disk.UID(handle), From: names.Image(baseImage, baseImage), Bytes: b.imageBytes(),
	})
	if err != nil {
		return nil, err
	}
	return b.attach(ctx, b.first, names.Head(handle))
}

// deleteClones detaches and deletes volumes.
func (b *bench) deleteClones(ctx context.Context, all []*attached) error {
	var failures []error
	for _, a := range all {
		failures = append(failures, b.detach(ctx, a), b.first.disk.Delete(ctx, disk.Name(a.device.Name)))
	}
	return errors.Join(failures...)
}
