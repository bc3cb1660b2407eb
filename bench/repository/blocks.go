package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"

	"github.com/varvebackup/varve/bench/report"
	"github.com/varvebackup/varve/bench/repository/corpus"
	"github.com/varvebackup/varve/internal/extent"
)

// blockRow is the costs of one block size.
type blockRow struct {
	Block string `json:"block"`
	// Full is a first full, in MiB stored. Runs and Scattered are 1 % changed, Worst is 0.1 %, in bytes stored per byte changed.
	Full      blockCost `json:"full"`
	Runs      blockCost `json:"runs"`
	Scattered blockCost `json:"scattered"`
	Worst     blockCost `json:"worst"`
	// Tebibyte and TebibyteRuns are 1 GiB dirty in a sparse disk of 1 TiB, in MiB stored.
	Tebibyte     blockCost `json:"tebibyte"`
	TebibyteRuns blockCost `json:"tebibyteRuns"`
}

// blockCost is the medians of the rounds of one measurement.
type blockCost struct {
	Seconds    float64 `json:"seconds"`
	CPUSeconds float64 `json:"cpuSeconds"`
	MemoryMiB  float64 `json:"memoryMiB"`
	Stored     float64 `json:"stored"`
}

func costOf(took usages, stored func(usage) float64) blockCost {
	c := took.medianCost()
	return blockCost{Seconds: took.sampleOf(wallSeconds).Median(), CPUSeconds: c.CPUSeconds, MemoryMiB: c.MemoryMiB, Stored: took.sampleOf(stored).Median()}
}

// compareBlocks measures Varve alone with each block size, each time on the same image, and prints a table.
func (b *bench) compareBlocks(ctx context.Context) error {
	var rows []blockRow
	for _, size := range b.blocks {
		fmt.Fprintln(b.log, "blocks of", size)
		r, err := b.measureBlockSize(ctx, size)
		if err != nil {
			return err
		}
		rows = append(rows, r)
	}
	printBlocks(os.Stdout, rows)
	return report.Write(filepath.Join(b.build, "bench-blocks.json"), rows)
}

func (b *bench) measureBlockSize(ctx context.Context, size string) (r blockRow, err error) {
	r.Block = size
	if err := b.makeImage(ctx); err != nil {
		return r, err
	}
	h := &history{bench: b, image: b.image, bytes: b.imageGiB * gib, ours: b.allTools()[varve], block: size}
	var full usages
	h.ours.full = append(h.ours.full, "--block-size", size)
	for range b.rounds {
		u, err := b.measureFull(ctx, h.ours)
		if err != nil {
			return r, err
		}
		full = append(full, u)
	}
	r.Full = costOf(full, storedMiB)
	if err := h.blockChanges(ctx, &r); err != nil {
		return r, err
	}
	if err := errors.Join(h.ours.removeStored(), os.Remove(h.image)); err != nil {
		return r, err
	}
	return r, b.blockTebibyte(ctx, size, &r)
}

// blockTebibyte measures restore points of the sparse disk.
func (b *bench) blockTebibyte(ctx context.Context, size string, r *blockRow) (err error) {
	h, err := b.sparseHistory(ctx, size)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.ours.removeStored(), os.Remove(h.image)) }()
	s, err := h.repeatStep(ctx, &step{history: h, name: "1tib", change: dirty, alone: true}, h.wholeImage())
	if err != nil {
		return err
	}
	r.Tebibyte = costOf(s.ours, storedMiB)
	runs, err := h.repeatStep(ctx, &step{history: h, name: "1tib runs", change: dirtyInRuns, alone: true}, h.wholeImage())
	if err != nil {
		return err
	}
	r.TebibyteRuns = costOf(runs.ours, storedMiB)
	return nil
}

// blockChanges measures the same changes as rows of the benchmark, without kopia.
func (h *history) blockChanges(ctx context.Context, r *blockRow) error {
	if _, err := h.beginHistory(ctx); err != nil {
		return err
	}
	for _, c := range []struct {
		cost   *blockCost
		name   string
		change change
		within []extent.Extent
	}{
		{&r.Runs, "1pct", inRuns, h.wholeImage()},
		{&r.Scattered, "1pct64k", scattered, h.wholeImage()},
		{&r.Worst, "worst", worst, corpus.Extents(h.runs, corpus.Random)},
	} {
		s, err := h.repeatStep(ctx, &step{history: h, name: c.name, change: c.change, alone: true}, c.within)
		if err != nil {
			return err
		}
		*c.cost = costOf(s.ours, s.amplificationOf)
	}
	return nil
}

// printBlocks prints for each measurement the seconds, the processor seconds, the memory in MiB and what was stored.
func printBlocks(out io.Writer, rows []blockRow) {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "BLOCK\tWHAT\tS\tCPU S\tMEMORY MIB\tSTORED")
	for _, r := range rows {
		for _, m := range []struct {
			what, stored string
			cost         blockCost
		}{
			{"first full", "%.0f MiB", r.Full},
			{"1 % in 1 MiB runs", "x %.2f", r.Runs},
			{"1 % in 64 KiB pieces", "x %.2f", r.Scattered},
			{"0.1 %, worst case", "x %.2f", r.Worst},
			{"1 GiB of 1 TiB in 64 KiB pieces", "%.0f MiB", r.Tebibyte},
			{"1 GiB of 1 TiB in 1 MiB runs", "%.0f MiB", r.TebibyteRuns},
		} {
			fmt.Fprintf(w, "%s\t%s\t%.2f\t%.2f\t%.0f\t"+m.stored+"\n", r.Block, m.what, m.cost.Seconds, m.cost.CPUSeconds, m.cost.MemoryMiB, m.cost.Stored)
		}
	}
	w.Flush()
}
