package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/varvebackup/varve/bench/nbdexport"
	"github.com/varvebackup/varve/bench/report"
)

// dirty is 1 GiB of the sparse disk, which also has 1 GiB of content to begin with. In runs it is easier.
var (
	dirty       = change{length: granule, align: granule, share: 1024}
	dirtyInRuns = change{length: mib, align: granule, share: 1024}
)

// The limits of a restore point after such a change.
const tebibyteSeconds, tebibyteMiB = 20, 512

// measureTebibyte measures restore points of a sparse disk of 1 TiB.
func (b *bench) measureTebibyte(ctx context.Context) (rows []report.Row, err error) {
	what := func(pieces string) string {
		return fmt.Sprintf("1 GiB dirty in a sparse 1 TiB disk, in %s, from an export with a bitmap, %s, synced", pieces, b.describeCold())
	}
	h, err := b.sparseHistory(ctx, "")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, h.ours.removeStored(), os.Remove(h.image)) }()
	if b.only.wantsAny("repo-1tib-seconds", "repo-1tib-mib") {
		s, err := h.repeatStep(ctx, &step{history: h, name: "1tib", change: dirty, alone: true}, h.wholeImage())
		if err != nil {
			return nil, err
		}
		rows = append(rows,
			rowVersusAim("repo-1tib-seconds", what("64 KiB pieces"), "s", wallSeconds, s.ours, tebibyteSeconds),
			rowVersusAim("repo-1tib-mib", "largest resident memory of the same", "MiB", memoryMiB, s.ours, tebibyteMiB))
	}
	if b.only.wantsAny("repo-1tib-runs-seconds") {
		s, err := h.repeatStep(ctx, &step{history: h, name: "1tib runs", change: dirtyInRuns, alone: true}, h.wholeImage())
		if err != nil {
			return nil, err
		}
		rows = append(rows, rowVersusAim("repo-1tib-runs-seconds", what("1 MiB runs"), "s", wallSeconds, s.ours, tebibyteSeconds))
	}
	return rows, nil
}

// sparseHistory makes the disk and its first restore point with this block size.
func (b *bench) sparseHistory(ctx context.Context, block string) (h *history, err error) {
	fmt.Fprintln(b.log, "1 TiB")
	h = &history{bench: b, image: filepath.Join(b.dir, "tebibyte.img"), bytes: tib, ours: b.allTools()[varve], block: block}
	if err := h.makeSparse(); err != nil {
		return nil, err
	}
	// The initial content is written in the same way as the changes.
	content, err := h.choosePieces(dirty, h.wholeImage())
	if err != nil {
		return nil, err
	}
	if err := h.withChanges(ctx, content, func(*nbdexport.Export, string) error { return nil }); err != nil {
		return nil, err
	}
	_, err = h.beginHistory(ctx)
	return h, err
}

// makeSparse makes an empty image.
func (h *history) makeSparse() error {
	f, err := os.Create(h.image)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(h.bytes), f.Close())
}
