package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/varvebackup/varve/bench/report"
	"github.com/varvebackup/varve/bench/repository/corpus"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/test/lab"
)

// The measured disk. Changes are pieces of pieceBytes at random multiples of it, in data and holes alike.
const (
	diskBytes  = 4 * gib
	usedBytes  = 2 * gib
	pieceBytes = 64 << 10
	pieceCount = int(diskBytes / 100 / pieceBytes)
)

// claimBytes is more than a raw disk with this size needs with the file system around it.
func claimBytes(disk int64) int64 { return disk + disk/16 + 64*mib }

var root = lab.Disk{Name: "root", Bytes: claimBytes(diskBytes)}

// overheadAim is in seconds.
const overheadAim = 8

// measureDisk measures a full, an incremental, an empty one and a restore of one disk, in a repository that is empty at first.
func (b *bench) measureDisk(ctx context.Context) ([]report.Row, error) {
	b.contents = append(b.contents, fmt.Sprintf("%d GiB with %d GiB in it", diskBytes/gib, usedBytes/gib))
	fill := func(int) string { return fmt.Sprintf("image %%s 1 %d %d", diskBytes, usedBytes) }
	if err := b.bootMachine(ctx, fill, root); err != nil {
		return nil, err
	}
	if err := b.Claim(ctx, raw, diskBytes, corev1.PersistentVolumeBlock); err != nil {
		return nil, err
	}
	tool, err := b.toolbox(ctx, "peer", veleroLike, lab.ClaimName(vmName, root.Name), raw)
	if err != nil {
		return nil, err
	}
	f := figures{}
	for i := range b.rounds + 1 {
		if i == 1 {
			clear(f) // what the first round has measured
		}
		if err := b.diskRound(ctx, i, f, tool); err != nil {
			return nil, errors.Join(err, tool.Close(context.WithoutCancel(ctx)))
		}
	}
	if err := tool.Close(ctx); err != nil {
		return nil, err
	}
	const kopia = "kopia as Velero's block uploader"
	what := fmt.Sprintf("a disk of %d GiB with %d GiB in it", diskBytes/gib, usedBytes/gib)
	return []report.Row{
		f.row("move-full", "full of "+what+", create to Completed", "s", kopia, diskBytes),
		f.row("move-full-data", "of that, from InProgress to the mover's report", "s", kopia, diskBytes),
		f.row("move-1pct", "the same disk, 1 % changed in 64 KiB pieces, create to Completed", "s", kopia, diskBytes),
		f.row("move-1pct-data", "of that, from InProgress to the mover's report", "s", kopia, diskBytes),
		f.row("move-overhead", "nothing changed, create to Completed", "s", "aim", diskBytes),
		f.row("move-restore", "restore of that disk to a new claim, create to Completed", "s", "qemu-img convert, synced", diskBytes),
		f.row("move-restore-data", "of the restore, from InProgress to the mover's report", "s", "qemu-img convert, synced", diskBytes),
	}, b.deleteMachine(ctx, root)
}

// diskRound is one round.
func (b *bench) diskRound(ctx context.Context, round int, f figures, tool *lab.Toolbox) error {
	fmt.Fprintf(b.log, "round %d\n", round)
	p, err := b.openPlace(ctx)
	if err != nil {
		return err
	}
	peer, err := b.openPeer(ctx, tool)
	if err != nil {
		return err
	}
	for _, step := range []struct {
		id, what string
		change   bool
	}{{"move-full", "full", false}, {"move-1pct", "1 %", true}} {
		if step.change {
			if err := b.changeDisk(ctx, uint64(round)); err != nil { //nolint:gosec // it is not negative
				return err
			}
		}
		ours, err := b.upload(ctx, step.what, p, true, root)
		if err != nil {
			return err
		}
		theirs, err := peer.backup(ctx, step.what)
		if err != nil {
			return err
		}
		f.add(step.id, ours.seconds(), theirs.Seconds, ours.usage, theirs.usage)
		f.add(step.id+"-data", ours.dataSeconds(), theirs.Seconds, nil, nil)
	}
	if err := peer.close(ctx); err != nil {
		return err
	}
	empty, err := b.upload(ctx, "empty", p, true, root)
	if err != nil {
		return err
	}
	f.add("move-overhead", empty.seconds(), overheadAim, empty.usage, nil)
	if err := b.measureRestore(ctx, f, empty, round == 0); err != nil {
		return err
	}
	return b.closePlace(ctx, p)
}

// changeDisk has the guest write pieces that are scattered over the disk, in one script.
func (b *bench) changeDisk(ctx context.Context, seed uint64) error {
	chosen, err := corpus.Pieces(rand.New(rand.NewPCG(seed, 2)), []extent.Extent{{Length: diskBytes}}, pieceBytes, pieceBytes, pieceCount)
	if err != nil {
		return err
	}
	return b.writeInGuest(ctx, root.Name, pieceBytes, chosen)
}

// writeInGuest has the guest write random bytes to a disk, at multiples of their length.
func (b *bench) writeInGuest(ctx context.Context, disk string, length int64, chosen []extent.Extent) error {
	began := time.Now()
	var script strings.Builder
	fmt.Fprintf(&script, "b=/dev/$(grep -lx %s /sys/block/*/serial | cut -d/ -f4)\nfor i in", disk)
	for _, p := range chosen {
		fmt.Fprintf(&script, " %d", p.Offset/length)
	}
	fmt.Fprintf(&script, "; do dd if=/dev/urandom of=$b bs=%d count=1 seek=$i conv=notrunc status=none; done; sync", length)
	g, err := b.Guest(ctx, vmName)
	if err != nil {
		return err
	}
	if _, err := g.Run(ctx, script.String()); err != nil {
		return err
	}
	fmt.Fprintf(b.log, "the guest has written %.1f MiB in %d places in %.1f s\n", float64(int64(len(chosen))*length)/float64(mib), len(chosen), secondsSince(began))
	return nil
}
