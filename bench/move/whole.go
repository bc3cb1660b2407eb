package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/varvebackup/varve/bench/report"
	"github.com/varvebackup/varve/test/lab"
)

// wholeAim is in seconds.
const wholeAim = 12

// measureWhole measures the backup of a whole machine in which nothing has changed, and its restore to a machine that
// stays stopped.
func (b *bench) measureWhole(ctx context.Context) (_ []report.Row, err error) {
	if err := b.SetMover(ctx, fmt.Sprintf("concurrency: {perNode: %d}", parallelDisks)); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.ResetMover(context.WithoutCancel(ctx))) }()
	disks := manyDisks()
	if err := b.bootMachine(ctx, fillMany, disks...); err != nil {
		return nil, err
	}
	f := figures{}
	for i := range b.rounds + 1 {
		if i == 1 {
			clear(f) // what the first round has measured
		}
		if err := b.wholeRound(ctx, f, i == 0); err != nil {
			return nil, err
		}
	}
	what := fmt.Sprintf("a machine with %d disks of %d GiB, half used", parallelDisks, parallelDiskBytes/gib)
	return []report.Row{
		f.row("vm-backup-overhead", what+", nothing changed, create to readyToUse", "s", "aim",
			parallelDisks*parallelDiskBytes),
		f.row("vm-restore", "restore of "+what+", create to complete, halted", "s",
			"qemu-img convert of the same disks, synced", parallelDisks*parallelDiskBytes),
	}, b.deleteMachine(ctx, disks...)
}

// wholeRound has a repository of its own.
func (b *bench) wholeRound(ctx context.Context, f figures, compare bool) error {
	p, err := b.openPlace(ctx)
	if err != nil {
		return err
	}
	full, _, err := b.backUpWhole(ctx, p)
	if err != nil {
		return err
	}
	empty, seconds, err := b.backUpWhole(ctx, p)
	if err != nil {
		return err
	}
	f.add("vm-backup-overhead", seconds, wholeAim, nil, nil)
	if err := b.restoreWhole(ctx, f, empty, compare); err != nil {
		return err
	}
	for _, o := range []*lab.MachineBackup{full, empty} {
		if err := b.Delete(ctx, o.VirtualMachineBackup); err != nil {
			return err
		}
		if err := b.WaitGone(ctx, o.VirtualMachineBackup, 3*time.Minute); err != nil {
			return err
		}
	}
	return b.closePlace(ctx, p)
}

// backUpWhole backs the machine up, with cold caches.
func (b *bench) backUpWhole(ctx context.Context, p *place) (*lab.MachineBackup, float64, error) {
	b.count++
	if err := dropCaches(); err != nil {
		return nil, 0, err
	}
	began := time.Now()
	o, err := b.BackUpAsItIs(ctx, fmt.Sprintf("whole-%d", b.count), vmName, nil, 5*time.Minute, p.Location)
	if err != nil {
		return nil, 0, err
	}
	seconds := secondsSince(began)
	for _, v := range o.Status.VolumeBackups {
		fmt.Fprintf(b.log, "%s, %s: %.1f MiB new or changed, full because %q\n", o.Name, v.VolumeName,
			float64(v.ChangedBytes)/float64(mib), v.FullReason)
	}
	fmt.Fprintf(b.log, "%s: %.2f s\n", o.Name, seconds)
	return o, seconds, nil
}

// restoreWhole restores the machine under another name, and has qemu-img copy its disks, which are as they were, to other
// claims, one after the other.
func (b *bench) restoreWhole(ctx context.Context, f figures, from *lab.MachineBackup, compare bool) error {
	if err := dropCaches(); err != nil {
		return err
	}
	name := from.Name + "-again"
	began := time.Now()
	r, err := b.RestoreMachine(ctx, from, name, 5*time.Minute)
	if err != nil {
		return err
	}
	seconds := secondsSince(began)
	peer, err := b.convertAll(ctx, manyDisks())
	if err != nil {
		return err
	}
	fmt.Fprintf(b.log, "restore of %s: %.2f s, qemu-img convert %.2f s\n", from.Name, seconds, peer)
	f.add("vm-restore", seconds, peer, nil, nil)
	var claims []client.Object
	for _, v := range r.Status.VolumeRestores {
		claim := v.PersistentVolumeClaim.ObjectMeta.Name
		claims = append(claims, claimNamed(claim))
		if compare {
			if err := b.compareClaims(ctx, lab.ClaimName(vmName, v.VolumeName), claim); err != nil {
				return err
			}
		}
	}
	vm := machineNamed(name)
	for _, o := range append([]client.Object{vm}, claims...) {
		if err := client.IgnoreNotFound(b.Delete(ctx, o)); err != nil {
			return err
		}
	}
	return b.WaitGone(ctx, vm, 2*time.Minute)
}

// convertAll copies the machine's disks to new claims, with cold caches, and deletes those.
func (b *bench) convertAll(ctx context.Context, disks []lab.Disk) (seconds float64, err error) {
	var claims, commands []string
	for _, d := range disks {
		to := "converted-" + d.Name
		if err := b.Claim(ctx, to, d.Bytes, "Filesystem"); err != nil {
			return 0, err
		}
		from := lab.ClaimName(vmName, d.Name)
		claims = append(claims, from, to)
		commands = append(commands, fmt.Sprintf("qemu-img convert -U -f raw -O raw %s %s; sync -f %[2]s",
			imageOn(from), imageOn(to)))
	}
	tool, err := b.Toolbox(ctx, "convert", claims...)
	if err != nil {
		return 0, err
	}
	if err := dropCaches(); err != nil {
		return 0, errors.Join(err, tool.Close(context.WithoutCancel(ctx)))
	}
	out, err := tool.Run(ctx, "set -e; a=$(date +%s%N); "+strings.Join(commands,
		"; ")+"; b=$(date +%s%N); echo $((b-a))")
	if err := errors.Join(err, tool.Close(context.WithoutCancel(ctx))); err != nil {
		return 0, err
	}
	var took time.Duration
	if _, err := fmt.Sscan(out, &took); err != nil {
		return 0, fmt.Errorf("time of qemu-img %q: %w", out, err)
	}
	for _, d := range disks {
		if err := b.Delete(ctx, claimNamed("converted-"+d.Name)); err != nil {
			return 0, err
		}
		if err := b.WaitGone(ctx, claimNamed("converted-"+d.Name), time.Minute); err != nil {
			return 0, err
		}
	}
	return took.Seconds(), nil
}
