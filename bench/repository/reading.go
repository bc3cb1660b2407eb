package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/varvebackup/varve/bench/report"
)

// measureReading measures restores of a Varve restore point and of a kopia snapshot, and how fast Varve verifies.
func (h *history) measureReading(ctx context.Context, id, snapshot string) ([]report.Row, error) {
	var rows []report.Row
	if h.only.wantsAny("repo-restore-qemuimg", "repo-restore-kopia") {
		more, err := h.measureRestores(ctx, id, snapshot)
		if err != nil {
			return nil, err
		}
		rows = more
	}
	if h.only.wantsAny("repo-verify") {
		r, err := h.measureVerify(ctx)
		if err != nil {
			return nil, err
		}
		rows = append(rows, r)
	}
	return rows, nil
}

func (h *history) measureRestores(ctx context.Context, id, snapshot string) ([]report.Row, error) {
	fmt.Fprintln(h.log, "restore")
	target := filepath.Join(h.dir, "restored.img")
	var ours, converted, theirs usages
	restore := func(took *usages, name string, args ...string) func(int) error {
		return func(round int) error {
			u, _, err := h.measureTask(ctx, task{name: name, args: args})
			if err != nil {
				return err
			}
			*took = append(*took, u)
			if round == 0 { // A fast restore with wrong content is worthless.
				if err := compareFiles(ctx, h.image, target); err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
			}
			return os.Remove(target)
		}
	}
	each := []func(int) error{restore(&ours, "varve restore", h.varve, "disk", "restore", id, target, "--progress", "none")}
	if h.only.wantsAny("repo-restore-qemuimg") {
		each = append(each, restore(&converted, "qemu-img convert", "qemu-img", "convert", "-f", "raw", "-O", "raw", h.image, target))
	}
	if h.only.wantsAny("repo-restore-kopia") {
		each = append(each, restore(&theirs, "kopia restore", h.kopia, "snapshot", "restore", "--no-progress", "--no-auto-maintenance", "--write-sparse-files", snapshot+"/"+filepath.Base(h.image), target))
	}
	if err := inRounds(h.rounds, each...); err != nil {
		return nil, err
	}
	what := fmt.Sprintf("restore of a %s to a raw file, %s, synced", h.describeDisk(), h.describeCold())
	var rows []report.Row
	if converted != nil {
		rows = append(rows, rowVersusPeer("repo-restore-qemuimg", what, "s", wallSeconds, ours, "qemu-img convert, raw to raw of the same content", converted))
	}
	if theirs != nil {
		rows = append(rows, rowVersusPeer("repo-restore-kopia", what, "s", wallSeconds, ours, "kopia, sparse", theirs))
	}
	return rows, nil
}

func (h *history) measureVerify(ctx context.Context) (report.Row, error) {
	fmt.Fprintln(h.log, "verify")
	const gb = 1e9
	var ours, theirs usages
	var rates, peer report.Sample
	err := inRounds(h.rounds, func(int) error {
		u, out, err := h.measureTask(ctx, task{name: "varve verify", args: []string{h.varve, "disk", "verify", "--progress", "none", "-o", "json"}})
		if err != nil {
			return err
		}
		var verified struct {
			Bytes int64 `json:"bytes"`
		}
		if err := json.Unmarshal(out, &verified); err != nil || verified.Bytes == 0 {
			return fmt.Errorf("varve's report %q: %w", out, err)
		}
		ours, rates = append(ours, u), append(rates, float64(verified.Bytes)/gb/u.wall.Seconds())
		return nil
	}, func(int) error {
		u, bytes, err := h.measureSHA256(ctx)
		if err != nil {
			return err
		}
		theirs, peer = append(theirs, u), append(peer, float64(bytes)/gb/u.wall.Seconds())
		return nil
	})
	if err != nil {
		return report.Row{}, err
	}
	what := fmt.Sprintf("verify of a %s, every content once, %s", h.describeDisk(), h.describeCold())
	r := report.Larger("repo-verify", what, "GB/s", rates, "SHA-256 of the image's data on all cores", peer)
	r.Cost, r.PeerCost = ours.medianCost(), theirs.medianCost()
	return r, nil
}
