package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/varvebackup/varve/bench/nbdexport"
	"github.com/varvebackup/varve/bench/report"
	"github.com/varvebackup/varve/bench/repository/corpus"
	"github.com/varvebackup/varve/internal/extent"
)

// history is the restore points of one raw image, which changes between them: in a Varve repository and, if it is
// compared, in a kopia one.
type history struct {
	*bench
	image string
	bytes int64
	// ours is Varve, and theirs is kopia.
	ours, theirs *tool
	// block is Varve's --block-size; "" is its default.
	block string
	// points is the number of restore points. The dirty bitmap since the last one is named after it.
	points int
}

// point is a restore point in the output of `varve -o json`.
type point struct {
	ID    string `json:"id"`
	Disks []struct {
		FullReason string `json:"fullReason"`
	} `json:"disks"`
}

// measureHistory measures everything that starts from a repository with one restore point: reading it, and adding others.
func (b *bench) measureHistory(ctx context.Context) (rows []report.Row, err error) {
	h := &history{bench: b, image: b.image, bytes: b.imageGiB * gib, ours: b.allTools()[varve], theirs: b.allTools()[kopia]}
	defer func() { err = errors.Join(err, h.ours.removeStored(), h.theirs.removeStored(), os.Remove(b.image)) }()
	fmt.Fprintln(b.log, "first restore point of the history")
	first, err := h.beginHistory(ctx)
	if err != nil {
		return nil, err
	}
	snapshot, err := h.kopiaBegin(ctx)
	if err != nil {
		return nil, err
	}
	if b.only.wantsAny(readIDs...) {
		if rows, err = h.measureReading(ctx, first, snapshot); err != nil {
			return nil, err
		}
	}
	if b.only.wantsAny(changeIDs...) {
		more, err := h.measureChanges(ctx)
		if err != nil {
			return nil, err
		}
		rows = append(rows, more...)
	}
	return rows, nil
}

// beginHistory makes an empty Varve repository and the first restore point, and returns its ID. It reads from the same kind
// of export as the following restore points.
func (h *history) beginHistory(ctx context.Context) (id string, err error) {
	if err := h.replaceRepository(ctx, h.ours); err != nil {
		return "", err
	}
	x, err := h.startExport(ctx, h.lastCheckpoint())
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, x.Stop()) }()
	_, p, err := h.backUp(ctx, "base", x, "")
	return p.ID, err
}

// kopiaBegin makes an empty kopia repository and the first snapshot, and returns its ID.
func (h *history) kopiaBegin(ctx context.Context) (id string, err error) {
	if err := h.replaceRepository(ctx, h.theirs); err != nil {
		return "", err
	}
	_, out, err := h.measureTask(ctx, task{name: "kopia base", args: h.theirs.full, repository: h.theirs.repository})
	if err != nil {
		return "", err
	}
	var snapshot struct {
		ID string `json:"id"`
	}
	if err := json.Unmarshal(out, &snapshot); err != nil || snapshot.ID == "" {
		return "", fmt.Errorf("kopia's snapshot %q: %w", out, err)
	}
	return snapshot.ID, nil
}

// lastCheckpoint returns the name of the last restore point in change tracking, in the form that `varve disk checkpoint` prints.
func (h *history) lastCheckpoint() string { return fmt.Sprintf("varve-%032x", h.points) }

// backUp measures a restore point of the export. It is incremental from the bitmap, or reads everything if bitmap is "".
func (h *history) backUp(ctx context.Context, name string, x *nbdexport.Export, bitmap string) (usage, point, error) {
	h.points++
	args := []string{
		h.varve, "disk", "backup", machineName, "disk=" + x.URI(), "--checkpoint", h.lastCheckpoint(),
		"--block-size", h.block, "--progress", "none", "-o", "json",
	}
	if bitmap != "" {
		args = append(args, "--bitmap", bitmap)
	}
	u, out, err := h.measureTask(ctx, task{name: "varve " + name, args: args, repository: h.ours.repository, beside: x.PID()})
	if err != nil {
		return u, point{}, err
	}
	var list struct {
		Items []point `json:"items"`
	}
	if err := json.Unmarshal(out, &list); err != nil {
		return u, point{}, fmt.Errorf("varve's restore point: %w", err)
	}
	if len(list.Items) != 1 || len(list.Items[0].Disks) != 1 {
		return u, point{}, fmt.Errorf("varve made other than one restore point of one disk: %s", out)
	}
	p := list.Items[0]
	if reason := p.Disks[0].FullReason; reason != "" && bitmap != "" {
		return u, p, fmt.Errorf("the incremental became a full one: %s", reason)
	}
	return u, p, nil
}

// choosePieces chooses where to change the image.
func (h *history) choosePieces(c change, within []extent.Extent) ([]extent.Extent, error) {
	return corpus.Pieces(rand.New(rand.NewPCG(seed, h.nextStream())), within, c.length, c.align, c.pieceCount(h.bytes))
}

// nextStream returns a new random stream for each use.
func (h *history) nextStream() uint64 {
	h.changes++
	return h.changes
}

// withChanges writes pieces to the image and calls measure with the export and the name of the bitmap that recorded them.
// A bitmap lasts for one change. In a guest's QEMU it would continue; here each change starts with a new one.
func (h *history) withChanges(ctx context.Context, pieces []extent.Extent, measure func(x *nbdexport.Export, bitmap string) error) (err error) {
	bitmap := h.lastCheckpoint()
	x, err := h.startExport(ctx, bitmap)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.Stop()) }()
	if err := x.WritePieces(ctx, pieces, corpus.Noise(seed, h.nextStream())); err != nil {
		return err
	}
	return measure(x, bitmap)
}

// startExport serves the image with an empty bitmap. It is backed up through it, and its processor time counts as Varve's.
func (h *history) startExport(ctx context.Context, bitmap string) (*nbdexport.Export, error) {
	return nbdexport.Start(ctx, nbdexport.Options{
		Image: h.image, Socket: filepath.Join(h.dir, "disk.sock"), Bitmap: bitmap, Environment: h.toolEnvironment(),
	})
}
