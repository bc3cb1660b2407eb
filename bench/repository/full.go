package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/varvebackup/varve/bench/report"
)

// fullRow compares the first backups of two tools.
type fullRow struct {
	id, ours, theirs, peer string
	unit                   string
	figure                 func(usage) float64
}

var fullRows = []fullRow{
	{"repo-full-kopia", varve, kopia, "kopia, same hash, cipher and S2", "s", wallSeconds},
	{"repo-full-restic", varve, restic, "restic, compression auto (zstd)", "s", wallSeconds},
	{"repo-stored-restic", varve, restic, "restic, compression auto (zstd)", "MiB", storedMiB},
	{"repo-full-borg", varve, borg, "borg, repokey-blake2, lz4 (its default)", "s", wallSeconds},
	{"repo-full-zstd-restic", varveZstd, restic, "restic, compression auto (zstd)", "s", wallSeconds},
	{"repo-stored-zstd-restic", varveZstd, restic, "restic, compression auto (zstd)", "MiB", storedMiB},
}

// measureFulls measures the first backup of the image into an empty repository.
func (b *bench) measureFulls(ctx context.Context) ([]report.Row, error) {
	took := map[string]usages{}
	var each []func(int) error
	for _, name := range b.fullTools() {
		t := b.allTools()[name]
		each = append(each, func(round int) error {
			if t.slow && round%2 == 1 {
				return nil
			}
			u, err := b.measureFull(ctx, t)
			took[name] = append(took[name], u)
			return err
		})
	}
	fmt.Fprintln(b.log, "first full")
	if err := inRounds(b.rounds, each...); err != nil {
		return nil, err
	}
	var rows []report.Row
	for _, r := range fullRows {
		if !b.only.wantsAny(r.id) {
			continue
		}
		what := fmt.Sprintf("first full of a %s, %s, synced", b.describeDisk(), b.describeCold())
		switch {
		case r.unit == "MiB":
			what = fmt.Sprintf("stored by the first full of a %s", b.describeDisk())
		case r.ours == varveZstd:
			what += ", with zstd"
		}
		rows = append(rows, rowVersusPeer(r.id, what, r.unit, r.figure, took[r.ours], r.peer, took[r.theirs]))
	}
	return rows, nil
}

// fullTools returns the tools that the wanted rows need, each once.
func (b *bench) fullTools() []string {
	var names []string
	for _, r := range fullRows {
		for _, name := range []string{r.ours, r.theirs} {
			if b.only.wantsAny(r.id) && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// measureFull measures one first backup, and removes the repository afterwards.
func (b *bench) measureFull(ctx context.Context, t *tool) (usage, error) {
	if err := b.replaceRepository(ctx, t); err != nil {
		return usage{}, err
	}
	u, _, err := b.measureTask(ctx, task{name: t.name + " full", args: t.full, repository: t.repository})
	return u, errors.Join(err, t.removeStored())
}

// replaceRepository replaces a tool's repository with an empty one.
func (b *bench) replaceRepository(ctx context.Context, t *tool) error {
	if err := t.removeStored(); err != nil {
		return err
	}
	for _, args := range t.create {
		if _, err := b.run(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

// removeStored removes everything that a tool has stored.
func (t *tool) removeStored() error {
	failures := []error{os.RemoveAll(t.repository)}
	for _, path := range t.state {
		failures = append(failures, os.RemoveAll(path))
	}
	return errors.Join(failures...)
}
