package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/test/lab"
)

// drop deletes the machine and its disk, so that the next part starts with another.
func (b *bench) drop(ctx context.Context) error {
	vm := &kubevirtv1.VirtualMachine{}
	vm.Namespace, vm.Name = namespace, vmName
	if err := client.IgnoreNotFound(b.Delete(ctx, vm)); err != nil {
		return err
	}
	return b.WaitGone(ctx, vm, 2*time.Minute)
}

// throughput compares a full push of random data with qemu-img convert of the same disk to the same target.
func (b *bench) throughput(ctx context.Context) ([]row, error) {
	disk := lab.Disk{Name: "dense", Bytes: (b.dataMiB + 1024) * mib}
	if err := b.boot(ctx, disk, (b.dataMiB+512)*mib); err != nil {
		return nil, err
	}
	fill := lab.Fill("/disks/dense/data", int(b.dataMiB)) + "sync"
	if err := b.guest(ctx, fill); err != nil {
		return nil, err
	}
	claim := lab.ClaimName(vmName, disk.Name)
	tool, err := b.Toolbox(ctx, "peer", claim, target)
	if err != nil {
		return nil, err
	}
	var ours, theirs, frozen sample
	for i := range b.rounds + 1 {
		t, err := b.backup(ctx, true)
		if err != nil {
			return nil, err
		}
		peer, err := convert(ctx, tool, claim)
		if err != nil {
			return nil, err
		}
		if _, err := tool.Run(ctx, "rm -rf /mnt/"+target+"/*"); err != nil {
			return nil, err
		}
		if i == 0 {
			continue
		}
		ours = append(ours, float64(t.backup.Status.MovedBytes)/float64(mib)/t.copying())
		theirs = append(theirs, float64(t.backup.Status.MovedBytes)/float64(mib)/peer)
		if t.backup.Status.FrozenMillis != nil {
			frozen = append(frozen, float64(*t.backup.Status.FrozenMillis))
		}
	}
	if err := tool.Close(ctx); err != nil {
		return nil, err
	}
	if len(frozen) == 0 {
		return nil, fmt.Errorf("no backup froze the guest")
	}
	rows := []row{
		larger("push-throughput", fmt.Sprintf("full push of %d MiB random data, hashed and synced", b.dataMiB), "MiB/s", ours, "qemu-img convert, synced", theirs),
		smaller("push-frozen", "guest file systems frozen, idle guest", "ms", frozen, "aim", sample{200}),
	}
	return rows, b.drop(ctx)
}

// convert returns how long qemu-img takes to copy the disk to the target, in seconds.
func convert(ctx context.Context, tool *lab.Toolbox, claim string) (float64, error) {
	script := fmt.Sprintf(`s=$(date +%%s%%N); qemu-img convert -U -f raw -O qcow2 /mnt/%s/disk.img /mnt/%s/peer.qcow2; sync /mnt/%[2]s/peer.qcow2; echo $(( $(date +%%s%%N) - s ))`, claim, target)
	out, err := tool.Run(ctx, script)
	if err != nil {
		return 0, err
	}
	ns, err := strconv.ParseInt(strings.TrimSpace(out), 10, 64)
	return float64(ns) / 1e9, err
}

// incremental measures a sparse full of 10 GiB with 300 MiB in it, and incrementals of 32 MiB scattered over it.
func (b *bench) incremental(ctx context.Context) ([]row, error) {
	disk := lab.Disk{Name: "sparse", Bytes: 12 * gib}
	if err := b.boot(ctx, disk, 10*gib); err != nil {
		return nil, err
	}
	if err := b.guest(ctx, lab.Fill("/disks/sparse/data", 304)+"sync"); err != nil {
		return nil, err
	}
	claim := lab.ClaimName(vmName, disk.Name)
	tool, err := b.Toolbox(ctx, "peer", claim, target)
	if err != nil {
		return nil, err
	}
	used, err := allocated(ctx, tool, "/mnt/"+claim+"/disk.img")
	if err != nil {
		return nil, err
	}
	var sparse, sparsePeer, moved, fullSeconds, incrSeconds sample
	for range b.rounds {
		full, err := b.backup(ctx, true)
		if err != nil {
			return nil, err
		}
		sparse = append(sparse, float64(full.backup.Status.MovedBytes)/float64(used))
		fullSeconds = append(fullSeconds, full.total())
		if _, err := convert(ctx, tool, claim); err != nil {
			return nil, err
		}
		theirs, err := allocated(ctx, tool, "/mnt/"+target+"/peer.qcow2")
		if err != nil {
			return nil, err
		}
		sparsePeer = append(sparsePeer, float64(theirs)/float64(used))
		scatter := `f=/disks/sparse/data; for i in $(seq 0 511); do dd if=/dev/urandom of=$f bs=64k count=1 seek=$((i*9)) conv=notrunc status=none; done; sync`
		if err := b.guest(ctx, scatter); err != nil {
			return nil, err
		}
		dirty, err := b.dirtyBytes(ctx)
		if err != nil {
			return nil, err
		}
		incr, err := b.backup(ctx, false)
		if err != nil {
			return nil, err
		}
		moved = append(moved, float64(incr.backup.Status.MovedBytes)/float64(dirty))
		incrSeconds = append(incrSeconds, incr.total())
	}
	if err := tool.Close(ctx); err != nil {
		return nil, err
	}
	rows := []row{
		smaller("push-sparse", "full of a 10 GiB disk with 300 MiB in it: bytes moved / used", "ratio", sparse, "qemu-img convert", sparsePeer),
		smaller("push-incremental", "32 MiB of scattered 64 KiB writes: bytes moved / dirty clusters", "ratio", moved, "aim", sample{1.2}),
		smaller("push-incremental-seconds", "the same incremental, create to Done", "s", incrSeconds, "the full of that disk", fullSeconds),
	}
	return rows, nil
}

// dirtyBytes is what QEMU's bitmaps say has changed since the tracker's checkpoint.
func (b *bench) dirtyBytes(ctx context.Context) (int64, error) {
	g, err := b.Guest(ctx, vmName)
	if err != nil {
		return 0, err
	}
	const script = `d=$(virsh -q -c qemu:///system list --name | head -n 1)
c=$(virsh -q -c qemu:///system checkpoint-list --name "$d" | head -n 1)
virsh -q -c qemu:///system checkpoint-dumpxml --size "$d" "$c" | grep -o "size='[0-9]*'" | tr -dc "0-9\n" | paste -sd+ | { read e; echo $((e)); }`
	out, err := g.Launcher(ctx, "bash", "-c", script)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(strings.TrimSpace(out), 10, 64)
	if err == nil && n == 0 {
		err = fmt.Errorf("libvirt reports no dirty bytes after a write")
	}
	return n, err
}

// overhead times an incremental backup of an idle guest from the creation of the object to Done.
func (b *bench) overhead(ctx context.Context) ([]row, error) {
	var seconds sample
	for i := range b.rounds + 1 {
		t, err := b.backup(ctx, false)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			seconds = append(seconds, t.total())
		}
	}
	return []row{smaller("push-overhead", "empty incremental, create to Done", "s", seconds, "aim", sample{5})}, b.drop(ctx)
}
