package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/varvebackup/varve/bench/report"
)

// dirty is 1 GiB of the sparse disk, which also has 1 GiB of content to begin with. In runs it is easier.
var (
	dirty       = change{length: granule, align: granule, share: 1024}
	dirtyInRuns = change{length: mib, align: granule, share: 1024}
)

// The limits of a restore point after such a change.
const tebibyteSeconds, tebibyteMiB = 20, 512

// tebibyte measures restore points of a sparse disk of 1 TiB.
func (b *bench) tebibyte(ctx context.Context) (rows []report.Row, err error) {
	what := func(pieces string) string {
		return fmt.Sprintf("1 GiB dirty in a sparse 1 TiB disk, in %s, from an export with a bitmap, %s, synced", pieces, b.coldness())
	}
	h, err := b.sparseHistory(ctx, "")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, h.ours.remove(), os.Remove(h.image)) }()
	if b.only.wants("repo-1tib-seconds", "repo-1tib-mib") {
		s, err := h.repeat(ctx, &step{history: h, name: "1tib", change: dirty, alone: true}, h.whole())
		if err != nil {
			return nil, err
		}
		rows = append(rows,
			aim("repo-1tib-seconds", what("64 KiB pieces"), "s", seconds, s.ours, tebibyteSeconds),
			aim("repo-1tib-mib", "largest resident memory of the same", "MiB", memoryMiB, s.ours, tebibyteMiB))
	}
	if b.only.wants("repo-1tib-runs-seconds") {
		s, err := h.repeat(ctx, &step{history: h, name: "1tib runs", change: dirtyInRuns, alone: true}, h.whole())
		if err != nil {
			return nil, err
		}
		rows = append(rows, aim("repo-1tib-runs-seconds", what("1 MiB runs"), "s", seconds, s.ours, tebibyteSeconds))
	}
	return rows, nil
}

// sparseHistory makes the disk and its first restore point with this block size.
func (b *bench) sparseHistory(ctx context.Context, block string) (h *history, err error) {
	fmt.Fprintln(b.log, "1 TiB")
	h = &history{bench: b, image: filepath.Join(b.dir, "tebibyte.img"), bytes: tib, ours: b.tools()[varve], block: block}
	if err := h.sparse(); err != nil {
		return nil, err
	}
	// The initial content is written in the same way as the changes.
	content, err := h.pieces(dirty, h.whole())
	if err != nil {
		return nil, err
	}
	if err := h.changed(ctx, content, func(*export, string) error { return nil }); err != nil {
		return nil, err
	}
	_, err = h.begin(ctx)
	return h, err
}

// sparse makes an empty image.
func (h *history) sparse() error {
	f, err := os.Create(h.image)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(h.bytes), f.Close())
}
