package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/varvebackup/varve/bench/report"
	"github.com/varvebackup/varve/bench/repository/corpus"
)

// seed is the seed of all randomness in a run.
const seed = 1

// machineName is the name of the machine to which Varve's restore points belong.
const machineName = "bench"

// bench is one run of the benchmark.
type bench struct {
	*options
	dir string
	// varve and kopia are the programs, and image is the disk that is backed up.
	varve, kopia, image string
	// dropsAll says that the whole page cache can be dropped.
	dropsAll bool
	log      io.Writer

	system *corpus.Files
	sizes  corpus.Sizes
	runs   []corpus.Run
	// changes numbers the random streams, so that no two changes of the image are the same.
	changes uint64
}

func newBench(ctx context.Context, o *options, dir string) (*bench, error) {
	b := &bench{
		options: o, dir: dir, log: os.Stderr, image: filepath.Join(dir, "disks", "disk.img"), dropsAll: os.WriteFile(dropCaches, []byte("1"), 0o200) == nil,
		varve: filepath.Join(o.build, "bin", "varve"), kopia: filepath.Join(o.build, "peers", "bin", "kopia"),
	}
	for _, program := range []string{b.varve, b.kopia, "restic", "borg", "qemu-img", "qemu-storage-daemon"} {
		if _, err := exec.LookPath(program); err != nil {
			return nil, fmt.Errorf("%w: run make bench-repository, which sees to it", err)
		}
	}
	for _, path := range []string{filepath.Join(dir, "home"), filepath.Dir(b.image)} {
		if err := os.MkdirAll(path, 0o700); err != nil {
			return nil, err
		}
	}
	if o.profile != "" {
		b.varve = filepath.Join(dir, "profiled")
		build := exec.CommandContext(ctx, "go", "build", "-o", b.varve, "./bench/repository/profiled")
		build.Dir, build.Stderr = filepath.Dir(o.build), os.Stderr
		if err := build.Run(); err != nil {
			return nil, fmt.Errorf("build a varve that profiles: %w", err)
		}
	}
	bytes := o.corpusMiB * mib
	var err error
	if b.system, err = corpus.SystemFiles(bytes / 2); err != nil {
		return nil, fmt.Errorf("files of the system: %w", err)
	}
	b.sizes = corpus.Mix(bytes, b.system.Bytes)
	b.runs = corpus.Layout(seed, o.imageGiB*gib, b.sizes)
	return b, nil
}

// makeImage writes the image in its initial state.
func (b *bench) makeImage(ctx context.Context) error {
	fmt.Fprintf(b.log, "image of %d GiB: %s\n", b.imageGiB, b.describeContent())
	b.changes = 0
	return corpus.Write(ctx, b.image, seed, b.imageGiB*gib, b.runs, b.system)
}

// describeContent describes the content of the image for people.
func (b *bench) describeContent() string {
	return fmt.Sprintf("%d MiB OS files, %d text, %d random, %d zeroes, the rest holes",
		b.sizes[corpus.System]/mib, b.sizes[corpus.Text]/mib, b.sizes[corpus.Random]/mib, b.sizes[corpus.Zero]/mib)
}

// describeDisk describes the image in a row's text.
func (b *bench) describeDisk() string {
	return fmt.Sprintf("%d GiB image with %d MiB in it", b.imageGiB, b.corpusMiB)
}

// part measures some of the rows.
type part struct {
	ids []string
	run func(context.Context) ([]report.Row, error)
}

// runParts runs the requested parts one after the other. Each leaves nothing behind but the image, which the second part changes.
func (b *bench) runParts(ctx context.Context) ([]report.Row, error) {
	if b.only.wantsAny(slices.Concat(fullIDs, readIDs, changeIDs)...) {
		if err := b.makeImage(ctx); err != nil {
			return nil, err
		}
	}
	var rows []report.Row
	for _, p := range []part{{fullIDs, b.measureFulls}, {slices.Concat(readIDs, changeIDs), b.measureHistory}, {tebibyteIDs, b.measureTebibyte}} {
		if !b.only.wantsAny(p.ids...) {
			continue
		}
		more, err := p.run(ctx)
		if err != nil {
			return nil, err
		}
		for _, r := range more {
			if b.only.wantsAny(r.ID) {
				rows = append(rows, r)
			}
		}
	}
	return rows, nil
}

// collectFacts returns what the figures depend on apart from the machine.
func (b *bench) collectFacts(ctx context.Context) (map[string]any, error) {
	versions := map[string]string{}
	for name, args := range map[string][]string{
		kopia: {b.kopia, "--version"}, restic: {"restic", "version"}, borg: {"borg", "--version"}, "qemu-img": {"qemu-img", "--version"},
	} {
		out, err := b.run(ctx, args...)
		if err != nil {
			return nil, err
		}
		versions[name], _, _ = strings.Cut(string(out), "\n")
	}
	return map[string]any{
		"rounds": b.rounds, "imageGiB": b.imageGiB, "corpusMiB": b.corpusMiB, "content": b.describeContent(), "cold": b.describeCold(),
		"versions": versions,
	}, nil
}
