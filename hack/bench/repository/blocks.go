package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"

	"github.com/varvebackup/varve/hack/bench/report"
	"github.com/varvebackup/varve/hack/bench/repository/corpus"
)

// blockRow is what one block size costs; medians of the rounds.
type blockRow struct {
	Block                  string  `json:"block"`
	FullSeconds            float64 `json:"fullSeconds"`
	FullMiB                float64 `json:"fullMiB"`
	FullStoredMiB          float64 `json:"fullStoredMiB"`
	RunsSeconds            float64 `json:"runsSeconds"`
	RunsAmplification      float64 `json:"runsAmplification"`
	ScatteredSeconds       float64 `json:"scatteredSeconds"`
	ScatteredAmplification float64 `json:"scatteredAmplification"`
	WorstAmplification     float64 `json:"worstAmplification"`
	TebibyteSeconds        float64 `json:"tebibyteSeconds"`
	TebibyteRunsSeconds    float64 `json:"tebibyteRunsSeconds"`
	TebibyteMiB            float64 `json:"tebibyteMiB"`
	TebibyteStoredMiB      float64 `json:"tebibyteStoredMiB"`
}

// compareBlocks measures Varve alone with each block size, each time on the same image, and prints a table.
func (b *bench) compareBlocks(ctx context.Context) error {
	var rows []blockRow
	for _, size := range b.blocks {
		fmt.Fprintln(b.log, "blocks of", size)
		r, err := b.block(ctx, size)
		if err != nil {
			return err
		}
		rows = append(rows, r)
	}
	printBlocks(os.Stdout, rows)
	return report.Write(filepath.Join(b.build, "bench-blocks.json"), rows)
}

func (b *bench) block(ctx context.Context, size string) (r blockRow, err error) {
	r.Block = size
	if err := b.makeImage(ctx); err != nil {
		return r, err
	}
	h := &history{bench: b, image: b.image, bytes: b.imageGiB * gib, ours: b.tools()[varve], block: size}
	var full usages
	h.ours.full = append(h.ours.full, "--block-size", size)
	for range b.rounds {
		u, err := b.full(ctx, h.ours)
		if err != nil {
			return r, err
		}
		full = append(full, u)
	}
	r.FullSeconds, r.FullStoredMiB, r.FullMiB = full.sample(seconds).Median(), full.sample(storedMiB).Median(), full.sample(memoryMiB).Median()
	if err := h.blockChanges(ctx, &r); err != nil {
		return r, err
	}
	if err := errors.Join(h.ours.remove(), os.Remove(h.image)); err != nil {
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
	defer func() { err = errors.Join(err, h.ours.remove(), os.Remove(h.image)) }()
	s, err := h.repeat(ctx, &step{history: h, name: "1tib", change: dirty, alone: true}, h.whole())
	if err != nil {
		return err
	}
	r.TebibyteSeconds, r.TebibyteMiB, r.TebibyteStoredMiB = s.ours.sample(seconds).Median(), s.ours.sample(memoryMiB).Median(), s.ours.sample(storedMiB).Median()
	runs, err := h.repeat(ctx, &step{history: h, name: "1tib runs", change: dirtyInRuns, alone: true}, h.whole())
	if err != nil {
		return err
	}
	r.TebibyteRunsSeconds = runs.ours.sample(seconds).Median()
	return nil
}

// blockChanges measures the changes that rows of the benchmark measure, without kopia.
func (h *history) blockChanges(ctx context.Context, r *blockRow) error {
	if _, err := h.begin(ctx); err != nil {
		return err
	}
	runs, err := h.repeat(ctx, &step{history: h, name: "1pct", change: inRuns, alone: true}, h.whole())
	if err != nil {
		return err
	}
	r.RunsSeconds, r.RunsAmplification = runs.ours.sample(seconds).Median(), runs.ours.sample(runs.amplification).Median()
	scattered, err := h.repeat(ctx, &step{history: h, name: "1pct64k", change: scattered, alone: true}, h.whole())
	if err != nil {
		return err
	}
	r.ScatteredSeconds, r.ScatteredAmplification = scattered.ours.sample(seconds).Median(), scattered.ours.sample(scattered.amplification).Median()
	worst, err := h.repeat(ctx, &step{history: h, name: "worst", change: worst, alone: true}, corpus.Extents(h.runs, corpus.Random))
	if err != nil {
		return err
	}
	r.WorstAmplification = worst.ours.sample(worst.amplification).Median()
	return nil
}

func printBlocks(out io.Writer, rows []blockRow) {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "BLOCK\tFULL S\tFULL MIB\tSTORED MIB\t1 % RUNS S\tx\t1 % 64K S\tx\tWORST x\t1 TIB S\tMIB\tSTORED MIB\t1 TIB RUNS S")
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%.2f\t%.0f\t%.0f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.0f\t%.0f\t%.2f\n", r.Block, r.FullSeconds, r.FullMiB, r.FullStoredMiB,
			r.RunsSeconds, r.RunsAmplification, r.ScatteredSeconds, r.ScatteredAmplification, r.WorstAmplification, r.TebibyteSeconds, r.TebibyteMiB, r.TebibyteStoredMiB, r.TebibyteRunsSeconds)
	}
	w.Flush()
}
