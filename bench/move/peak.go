package main

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/varvebackup/varve/bench/report"
	"github.com/varvebackup/varve/bench/repository/corpus"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/test/lab"
)

// The disk of 1 TiB is sparse. What is in it is as bad as can be: pieces that lie all over it.
const (
	peakDiskBytes = tib
	peakPieces    = 16 << 10
	// peakChanges are written by the guest, for which each costs milliseconds.
	peakChanges = 4 << 10
	// peakAim is in MiB.
	peakAim = 300
)

var huge = lab.Disk{Name: "huge", Bytes: claimBytes(peakDiskBytes)}

// measurePeak measures the largest resident set of the mover for a disk of 1 TiB, once.
func (b *bench) measurePeak(ctx context.Context) ([]report.Row, error) {
	fill := func(int) string { return fmt.Sprintf("pieces %%s 20 %d %d %d", peakDiskBytes, pieceBytes, peakPieces) }
	if err := b.bootMachine(ctx, fill, huge); err != nil {
		return nil, err
	}
	p, err := b.openPlace(ctx)
	if err != nil {
		return nil, err
	}
	full, err := b.upload(ctx, "full of 1 TiB", p, true, huge)
	if err != nil {
		return nil, err
	}
	chosen, err := corpus.Pieces(rand.New(rand.NewPCG(20, 2)), []extent.Extent{{Length: peakDiskBytes}}, pieceBytes, pieceBytes, peakChanges)
	if err != nil {
		return nil, err
	}
	if err := b.writeInGuest(ctx, huge.Name, pieceBytes, chosen); err != nil {
		return nil, err
	}
	changed, err := b.upload(ctx, "changes in 1 TiB", p, true, huge)
	if err != nil {
		return nil, err
	}
	f := figures{}
	for id, u := range map[string]*upload{"move-peak": full, "move-peak-changes": changed} {
		f.add(id, float64(u.usage.moverBytes)/float64(mib), peakAim, u.usage, nil)
	}
	if err := b.closePlace(ctx, p); err != nil {
		return nil, err
	}
	return []report.Row{
		f.row("move-peak", fmt.Sprintf("mover's peak, full of a disk of 1 TiB with %d pieces of 64 KiB all over it", peakPieces), "MiB", "aim", peakDiskBytes),
		f.row("move-peak-changes", fmt.Sprintf("the same, incremental of %d pieces", peakChanges), "MiB", "aim", peakDiskBytes),
	}, b.deleteMachine(ctx, huge)
}
