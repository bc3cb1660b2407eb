package main

import (
	"context"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1alpha1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/bench/report"
	"github.com/varvebackup/varve/test/lab"
)

// deleteMachine deletes the machine and its disk, so that the next part starts with another disk.
func (b *bench) deleteMachine(ctx context.Context) error {
	vm := &kubevirtv1.VirtualMachine{}
	vm.Namespace, vm.Name = namespace, vmName
	if err := client.IgnoreNotFound(b.Delete(ctx, vm)); err != nil {
		return err
	}
	return b.WaitGone(ctx, vm, 2*time.Minute)
}

// measureThroughput compares a full push of random data with tools that do the same work: qemu-img convert to the same
// target, synced, and then sha256sum of the file that it wrote. Both read the disk from storage: QEMU because it runs
// with cache=none, and the peer because its source is dropped from the page cache before each round.
func (b *bench) measureThroughput(ctx context.Context) ([]report.Row, error) {
	disk := lab.Disk{Name: "dense", Bytes: (b.dataMiB + 1024) * mib}
	if err := b.bootMachine(ctx, disk, (b.dataMiB+512)*mib, b.dataMiB); err != nil {
		return nil, err
	}
	claim := lab.ClaimName(vmName, disk.Name)
	tool, err := b.Toolbox(ctx, "peer", claim, target)
	if err != nil {
		return nil, err
	}
	var ours, oursHashed, theirs, theirsHashed, frozen report.Sample
	for i := range b.rounds + 1 {
		t, err := b.takeBackup(ctx, true)
		if err != nil {
			return nil, err
		}
		peer, err := convertByPeer(ctx, tool, claim)
		if err != nil {
			return nil, err
		}
		if _, err := tool.Run(ctx, "rm -rf /mnt/"+target+"/*; sync -f /mnt/"+target); err != nil {
			return nil, err
		}
		if i == 0 {
			continue
		}
		s := &t.backup.Status
		moved := float64(s.MovedBytes) / float64(mib)
		ours = append(ours, moved/secondsOfMillis(s.CopyMillis))
		oursHashed = append(oursHashed, moved/secondsOfMillis(s.CopyMillis+s.SealMillis))
		theirs = append(theirs, moved/peer.copied.Seconds())
		theirsHashed = append(theirsHashed, moved/(peer.copied+peer.hashed).Seconds())
		if frozen, err = addFrozen(frozen, s); err != nil {
			return nil, err
		}
	}
	if err := tool.Close(ctx); err != nil {
		return nil, err
	}
	what := fmt.Sprintf("full push of %d MiB random data", b.dataMiB)
	rows := []report.Row{
		report.Larger("push-throughput", what+", synced", "MiB/s", ours, "qemu-img convert, synced", theirs),
		report.Larger("push-throughput-hashed", what+", synced and hashed", "MiB/s", oursHashed, "the same and sha256sum", theirsHashed),
		report.Smaller("push-frozen-full", "guest file systems frozen, idle guest, that full push", "ms", frozen, "aim", report.Sample{200}),
	}
	return rows, b.deleteMachine(ctx)
}

func secondsOfMillis(n int64) float64 { return (time.Duration(n) * time.Millisecond).Seconds() }

// addFrozen appends how long a backup froze its guest.
func addFrozen(s report.Sample, b *backupv1alpha1.VirtualMachineBackupStatus) (report.Sample, error) {
	if b.FrozenMillis == nil {
		return nil, fmt.Errorf("a backup did not freeze the guest: %s", b.Message)
	}
	return append(s, float64(*b.FrozenMillis)), nil
}

// peerTimes is how long qemu-img took to copy a disk and make the copy durable, and how long sha256sum took to read it.
type peerTimes struct{ copied, hashed time.Duration }

// convertByPeer copies the disk to the target with Varve's peer.
func convertByPeer(ctx context.Context, tool *lab.Toolbox, claim string) (peerTimes, error) {
	script := fmt.Sprintf(`in=/mnt/%s/disk.img; out=/mnt/%s/peer.qcow2
rm -f $out; sync; dd if=$in iflag=nocache count=0 status=none
a=$(date +%%s%%N); qemu-img convert -U -f raw -O qcow2 $in $out; sync $out
b=$(date +%%s%%N); sha256sum $out >/dev/null
c=$(date +%%s%%N); echo $((b-a)) $((c-b))`, claim, target)
	out, err := tool.Run(ctx, script)
	if err != nil {
		return peerTimes{}, err
	}
	var t peerTimes
	if _, err := fmt.Sscan(out, &t.copied, &t.hashed); err != nil {
		return peerTimes{}, fmt.Errorf("times of the peer %q: %w", out, err)
	}
	return t, nil
}

// measureSparse measures a full backup of a 10 GiB disk with 300 MiB of data.
func (b *bench) measureSparse(ctx context.Context) ([]report.Row, error) {
	disk := lab.Disk{Name: "sparse", Bytes: 12 * gib}
	if err := b.bootMachine(ctx, disk, 10*gib, 304); err != nil {
		return nil, err
	}
	claim := lab.ClaimName(vmName, disk.Name)
	tool, err := b.Toolbox(ctx, "peer", claim, target)
	if err != nil {
		return nil, err
	}
	used, err := allocatedBytes(ctx, tool, "/mnt/"+claim+"/disk.img")
	if err != nil {
		return nil, err
	}
	var ours, theirs report.Sample
	for range b.rounds {
		full, err := b.takeBackup(ctx, true)
		if err != nil {
			return nil, err
		}
		ours = append(ours, float64(full.backup.Status.MovedBytes)/float64(used))
		if _, err := convertByPeer(ctx, tool, claim); err != nil {
			return nil, err
		}
		peer, err := allocatedBytes(ctx, tool, "/mnt/"+target+"/peer.qcow2")
		if err != nil {
			return nil, err
		}
		theirs = append(theirs, float64(peer)/float64(used))
	}
	if err := tool.Close(ctx); err != nil {
		return nil, err
	}
	return []report.Row{report.Smaller("push-sparse", "full of a 10 GiB disk with 300 MiB in it: bytes moved / used", "ratio", ours, "qemu-img convert", theirs)}, b.deleteMachine(ctx)
}

// fullMiB is how much of the 10 GiB disk is in use when its incrementals are measured.
const fullMiB = 8 << 10

// measureIncremental measures incrementals of 32 MiB scattered over a 10 GiB disk that is in use, and empty ones.
func (b *bench) measureIncremental(ctx context.Context) ([]report.Row, error) {
	disk := lab.Disk{Name: "used", Bytes: 12 * gib}
	if err := b.bootMachine(ctx, disk, 10*gib, fullMiB); err != nil {
		return nil, err
	}
	full, err := b.takeBackup(ctx, true)
	if err != nil {
		return nil, err
	}
	var moved, seconds, empty, frozen report.Sample
	for range b.rounds {
		scatter := fmt.Sprintf(`f=/disks/used/filler; for i in $(seq 0 511); do dd if=/dev/urandom of=$f bs=64k count=1 seek=$((i*%d)) conv=notrunc status=none; done; sync`, fullMiB*16/512-1)
		if err := b.runInGuest(ctx, scatter); err != nil {
			return nil, err
		}
		dirty, err := b.dirtyBytes(ctx)
		if err != nil {
			return nil, err
		}
		incr, err := b.takeBackup(ctx, false)
		if err != nil {
			return nil, err
		}
		moved = append(moved, float64(incr.backup.Status.MovedBytes)/float64(dirty))
		seconds = append(seconds, incr.totalSeconds())
		none, err := b.takeBackup(ctx, false)
		if err != nil {
			return nil, err
		}
		empty = append(empty, none.totalSeconds())
		if frozen, err = addFrozen(frozen, &none.backup.Status); err != nil {
			return nil, err
		}
	}
	rows := []report.Row{
		report.Smaller("push-incremental", "32 MiB of scattered 64 KiB writes on a 10 GiB disk: bytes moved / dirty clusters", "ratio", moved, "aim", report.Sample{1.2}),
		report.Smaller("push-incremental-seconds", "the same incremental, create to Done", "s", seconds, "the full of that disk, 8 GiB used", report.Sample{full.totalSeconds()}),
		report.Smaller("push-overhead", "empty incremental, create to Done", "s", empty, "aim", report.Sample{5}),
		report.Smaller("push-frozen", "guest file systems frozen, idle guest, that incremental", "ms", frozen, "aim", report.Sample{200}),
	}
	return rows, b.deleteMachine(ctx)
}

// dirtyBytes returns how many bytes have changed since the tracker's checkpoint, according to QEMU's bitmaps.
func (b *bench) dirtyBytes(ctx context.Context) (int64, error) {
	g, err := b.Guest(ctx, vmName)
	if err != nil {
		return 0, err
	}
	n, err := g.DirtyBytes(ctx)
	if err == nil && n == 0 {
		err = fmt.Errorf("libvirt reports no dirty bytes after a write")
	}
	return n, err
}
