package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/varvebackup/varve/bench/report"
	"github.com/varvebackup/varve/test/lab"
)

// The disks that are moved at once. Each has its own content.
const (
	parallelDisks     = 4
	parallelDiskBytes = gib
	parallelUsedBytes = gib / 2
)

func manyDisks() []lab.Disk {
	var disks []lab.Disk
	for i := range parallelDisks {
		disks = append(disks, lab.Disk{Name: fmt.Sprintf("disk%d", i), Bytes: claimBytes(parallelDiskBytes)})
	}
	return disks
}

// fillMany is the command of diskwriter that fills one of them.
func fillMany(i int) string {
	return fmt.Sprintf("image %%s %d %d %d", 10+i, parallelDiskBytes, parallelUsedBytes)
}

// measureParallel measures the fulls of disks in one group, all at once, and of the same disks one after the other, each in a group of its own.
func (b *bench) measureParallel(ctx context.Context) (_ []report.Row, err error) {
	if err := b.SetMover(ctx, fmt.Sprintf("concurrency: {perNode: %d}", parallelDisks)); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.ResetMover(context.WithoutCancel(ctx))) }()
	disks := manyDisks()
	if err := b.bootMachine(ctx, fillMany, disks...); err != nil {
		return nil, err
	}
	f := figures{}
	for i := range b.rounds + 1 {
		if i == 1 {
			clear(f) // what the first round has measured
		}
		if err := b.parallelRound(ctx, f, disks); err != nil {
			return nil, err
		}
	}
	what := fmt.Sprintf("fulls of %d disks of %d GiB, half used, as one group, create to the last Completed", parallelDisks, parallelDiskBytes/gib)
	return []report.Row{
		f.row("move-parallel", what, "s", "the same disks, one after the other, create to Completed", parallelDisks*parallelDiskBytes),
	}, b.deleteMachine(ctx, disks...)
}

// parallelRound has an empty repository for each of the two.
func (b *bench) parallelRound(ctx context.Context, f figures, disks []lab.Disk) error {
	p, err := b.openPlace(ctx)
	if err != nil {
		return err
	}
	var alone float64
	var aloneUsed *usage
	for _, d := range disks {
		u, err := b.upload(ctx, "alone", p, false, d)
		if err != nil {
			return err
		}
		alone += u.seconds()
		aloneUsed = u.usage.plus(aloneUsed)
	}
	if err := b.closePlace(ctx, p); err != nil {
		return err
	}
	if p, err = b.openPlace(ctx); err != nil {
		return err
	}
	together, err := b.upload(ctx, "together", p, false, disks...)
	if err != nil {
		return err
	}
	f.add("move-parallel", together.seconds(), alone, together.usage, aloneUsed)
	return b.closePlace(ctx, p)
}
