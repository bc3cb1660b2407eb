package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/varvebackup/varve/bench/nbdexport"
	"github.com/varvebackup/varve/bench/report"
	"github.com/varvebackup/varve/bench/repository/corpus"
	"github.com/varvebackup/varve/internal/extent"
)

// granule is the granularity of QEMU's dirty bitmap.
const granule = 64 * kib

// change is a kind of change: pieces of one length at multiples of align, which together make up 1/share of the disk.
type change struct{ length, align, share int64 }

var (
	inRuns    = change{length: mib, align: granule, share: 100}
	scattered = change{length: granule, align: granule, share: 100}
	// worst is few pieces that cross block boundaries. They are in random data, so that no compression makes the
	// blocks that are stored again smaller.
	worst = change{length: granule, align: corpus.Grain, share: 1000}
)

// pieceCount returns the number of pieces for a disk of this size.
func (c change) pieceCount(bytes int64) int { return int(bytes / c.share / c.length) }

// amplificationAim is how many bytes a scattered change may store per changed byte.
const amplificationAim = 6

// measureChanges measures restore points after changes.
func (h *history) measureChanges(ctx context.Context) (rows []report.Row, err error) {
	for _, p := range []part{
		{[]string{"repo-unchanged-kopia", "repo-untouched-kopia", "repo-reread-kopia"}, h.measureUnchanged},
		{[]string{"repo-1pct-kopia"}, h.runs1pct},
		{[]string{"repo-1pct64k-kopia", "repo-amplification"}, h.scattered1pct},
		{[]string{"repo-amplification-worst"}, h.worstPieces},
	} {
		if !h.only.wantsAny(p.ids...) {
			continue
		}
		more, err := p.run(ctx)
		if err != nil {
			return nil, err
		}
		rows = append(rows, more...)
	}
	return rows, h.checkLastPoint(ctx)
}

// step is one kind of change, with the costs of Varve's restore points and kopia's snapshots after it.
type step struct {
	*history
	name string
	change
	ours, theirs usages
	// alone says that kopia is not measured.
	alone bool
}

// runRound writes pieces and has both tools back them up, in an order that alternates from round to round.
func (s *step) runRound(ctx context.Context, round int, pieces []extent.Extent) error {
	return s.withChanges(ctx, pieces, func(x *nbdexport.Export, bitmap string) error {
		both := []func() error{
			func() error {
				u, _, err := s.backUp(ctx, s.name, x, bitmap)
				s.ours = append(s.ours, u)
				return err
			},
			func() error {
				if s.alone {
					return nil
				}
				u, err := s.measureSnapshot(ctx, s.name)
				s.theirs = append(s.theirs, u)
				return err
			},
		}
		for i := range both {
			if err := both[(i+round)%len(both)](); err != nil {
				return err
			}
		}
		return nil
	})
}

// measureSnapshot measures a kopia snapshot of the raw image.
func (h *history) measureSnapshot(ctx context.Context, name string) (usage, error) {
	u, _, err := h.measureTask(ctx, task{name: "kopia " + name, args: h.kopiaSnapshot(), repository: h.theirs.repository})
	return u, err
}

// touchImage makes the image look changed, as the file of a running guest always does.
func (h *history) touchImage() error {
	now := time.Now()
	return os.Chtimes(h.image, now, now)
}

// measureUnchanged measures restore points of unchanged content.
func (h *history) measureUnchanged(ctx context.Context) ([]report.Row, error) {
	fmt.Fprintln(h.log, "unchanged")
	var reread, untouched usages
	s := &step{history: h, name: "unchanged"}
	for round := range h.rounds {
		if err := h.touchImage(); err != nil {
			return nil, err
		}
		if err := s.runRound(ctx, round, nil); err != nil {
			return nil, err
		}
		u, err := h.measureSnapshot(ctx, "untouched")
		if err != nil {
			return nil, err
		}
		untouched = append(untouched, u)
		err = h.withChanges(ctx, nil, func(x *nbdexport.Export, _ string) error {
			u, _, err := h.backUp(ctx, "reread", x, "")
			reread = append(reread, u)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	what := func(how string) string {
		return fmt.Sprintf("restore point of an unchanged %s, %s, %s, synced", h.describeDisk(), how, h.describeCold())
	}
	return []report.Row{
		rowVersusPeer("repo-unchanged-kopia", what("from an export's empty bitmap"), "s", wallSeconds, s.ours, "kopia's snapshot of the raw file with a new time", s.theirs),
		rowVersusPeer("repo-untouched-kopia", what("from an export's empty bitmap"), "s", wallSeconds, s.ours, "kopia's snapshot of the raw file with the old time, which it does not read", untouched),
		rowVersusPeer("repo-reread-kopia", what("from an export without a bitmap"), "s", wallSeconds, reread, "kopia's snapshot of the raw file with a new time", s.theirs),
	}, nil
}

// fromBitmap returns the text of a row about changes.
func (h *history) fromBitmap(pieces string) string {
	return fmt.Sprintf("1 %% of a %s changed in %s, from an export with a bitmap, %s, synced", h.describeDisk(), pieces, h.describeCold())
}

const kopiasSnapshot = "kopia's snapshot of the raw file"

// wholeImage returns the whole image as the place for changes.
func (h *history) wholeImage() []extent.Extent { return []extent.Extent{{Length: h.bytes}} }

func (h *history) runs1pct(ctx context.Context) ([]report.Row, error) {
	s, err := h.repeatStep(ctx, &step{history: h, name: "1pct", change: inRuns}, h.wholeImage())
	if err != nil {
		return nil, err
	}
	return []report.Row{rowVersusPeer("repo-1pct-kopia", h.fromBitmap("1 MiB runs"), "s", wallSeconds, s.ours, kopiasSnapshot, s.theirs)}, nil
}

func (h *history) scattered1pct(ctx context.Context) ([]report.Row, error) {
	s, err := h.repeatStep(ctx, &step{history: h, name: "1pct64k", change: scattered}, h.wholeImage())
	if err != nil {
		return nil, err
	}
	return []report.Row{
		rowVersusPeer("repo-1pct64k-kopia", h.fromBitmap("64 KiB pieces"), "s", wallSeconds, s.ours, kopiasSnapshot, s.theirs),
		rowVersusPeer("repo-amplification", "stored bytes per changed byte of the same", "ratio", s.amplificationOf, s.ours, kopiasSnapshot, s.theirs),
	}, nil
}

func (h *history) worstPieces(ctx context.Context) ([]report.Row, error) {
	s, err := h.repeatStep(ctx, &step{history: h, name: "worst", change: worst, alone: true}, corpus.Extents(h.runs, corpus.Random))
	if err != nil {
		return nil, err
	}
	what := "stored bytes per changed byte, 0.1 % in 64 KiB pieces at multiples of 4 KiB, all in random data"
	return []report.Row{rowVersusAim("repo-amplification-worst", what, "ratio", s.amplificationOf, s.ours, amplificationAim)}, nil
}

// repeatStep measures a step in each round, with changes within these extents.
func (h *history) repeatStep(ctx context.Context, s *step, within []extent.Extent) (*step, error) {
	fmt.Fprintln(h.log, s.name)
	for round := range h.rounds {
		pieces, err := h.choosePieces(s.change, within)
		if err != nil {
			return nil, err
		}
		if err := s.runRound(ctx, round, pieces); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// amplificationOf returns how many bytes were stored per changed byte.
func (s *step) amplificationOf(u usage) float64 {
	return float64(u.stored) / float64(int64(s.change.pieceCount(s.bytes))*s.change.length)
}

// checkLastPoint restores Varve's last restore point and compares it with the image: a fast restore point with wrong content is worthless.
func (h *history) checkLastPoint(ctx context.Context) error {
	out, err := h.run(ctx, h.varve, "disk", "list", machineName, "-o", "name")
	if err != nil {
		return err
	}
	lines := strings.Fields(string(out))
	if len(lines) == 0 {
		return errors.New("varve lists no restore points")
	}
	target := filepath.Join(h.dir, "restored.img")
	if _, err := h.run(ctx, h.varve, "disk", "restore", lines[len(lines)-1], target, "--progress", "none"); err != nil {
		return err
	}
	if err := compareFiles(ctx, h.image, target); err != nil {
		return fmt.Errorf("the last restore point: %w", err)
	}
	return os.Remove(target)
}
