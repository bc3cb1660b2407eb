//go:build soak

package soak

import (
	"context"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/test/gen"
	"github.com/varvebackup/varve/test/lab"
	"github.com/varvebackup/varve/test/verdict"
)

const (
	// scheduleRetain is spec.retain of all schedules, and scheduleHours what one of them keeps besides.
	scheduleRetain, scheduleHours = 3, 2
	// maintainEvery is how often the repository is maintained meanwhile.
	maintainEvery = "1m30s"
	settleTimeout = 15 * time.Minute
)

// TestSchedules_aDayInMinutes backs four machines up by three schedules each for SOAK_SCHEDULES (20) minutes, with a
// run every 2, 3 and 5 minutes. Three of the machines write all the time, and a process is killed every 40 seconds. The
// storage stands still for a minute, and is away for three. Schedules that are suspended are resumed. In the end
// each due time has one record, what retention keeps is there and nothing else, and each disk of each backup holds what
// its machine had written.
func TestSchedules_aDayInMinutes(t *testing.T) {
	minutes := envInt(t, "SOAK_SCHEDULES", 20)
	if minutes < 6 || minutes > 50 {
		t.Fatalf("SOAK_SCHEDULES=%d: want 6 to 50, as a schedule records 30 runs", minutes)
	}
	t.Logf("SOAK_SCHEDULES=%d", minutes)
	ctx, window := t.Context(), time.Duration(minutes)*time.Minute
	d := &scheduleDay{soak: open(t, "varve-soak-schedules", nil), history: map[string]*backupHistory{}}
	// An earlier run that failed has left its DataUploads.
	d.must(d.DeleteUploads(ctx, 12*time.Minute))
	at, err := d.BucketLocation(ctx, "soak-schedules", os.Getenv("VARVE_BOX_DIR"))
	d.must(err)
	d.at = at
	t.Cleanup(func() { d.must(startStorage(context.WithoutCancel(ctx))) })
	d.makeMachines()
	before := d.census()
	d.claims = d.listClaims()
	d.makeSchedules()
	t.Cleanup(func() {
		if t.Failed() {
			d.explain() // what there is stays, and grows no more
			d.suspendAll()
		}
	})

	day, stop := context.WithTimeout(ctx, window)
	defer stop()
	kills := &mishaps{soak: d.soak}
	for _, m := range d.machines {
		if m.running {
			kills.done.Go(func() { d.keepWriting(day, m) })
		}
	}
	kills.begin(day, window)
	kills.done.Go(func() { d.watchOver(day) })
	kills.check(t)
	ended := time.Now()
	d.must(startStorage(ctx))
	d.settle(ended)
	t.Logf("%s; %d times a schedule was resumed; the location was unavailable: %v; %s", d.countRuns(), d.resumed,
		d.unavailable, d.describeMaintenance())

	d.checkRuns()
	kept := d.checkRetention()
	d.waitOnly(kept)
	restored := 0
	for i := range kept {
		if b := &kept[i]; b.Spec.Type == harvesterv1.Backup {
			d.comesBack(b, fmt.Sprintf("again-%02d", i))
			restored++
		}
	}
	t.Logf("%d backups restored, %d disks compared", restored, d.compared)
	if restored < len(d.machines)*2 || d.resumed == 0 || !d.unavailable {
		t.Error("the run proved little: each machine needs backups, and the location has to be unavailable meanwhile")
	}
	d.deleteAll(before)
}

// scheduleDay is a cluster whose machines have schedules.
type scheduleDay struct {
	*soak
	at        *lab.Location
	machines  []*dayMachine
	schedules []*harvesterv1.ScheduleVMBackup
	// claims are those of the namespace before there were backups.
	claims []string
	// history has what was seen of backups, by their names.
	history     map[string]*backupHistory
	resumed     int
	unavailable bool
}

// backupHistory is what was seen of backups of one name: their UIDs, and whether one was ready.
type backupHistory struct {
	schedule, due string
	uids          []types.UID
	ready         bool
}

type dayMachine struct {
	generations
	name    string
	disks   []lab.Disk
	running bool
}

// makeMachines makes three machines that run, of which one has two disks, and one that does not. Each has written its
// first generation.
func (d *scheduleDay) makeMachines() {
	d.t.Helper()
	ctx := d.t.Context()
	block, file := lab.Disk{Name: "blk", Bytes: 64 * mib, Block: true}, lab.Disk{Name: "file", Bytes: 64 * mib}
	d.machines = []*dayMachine{
		{name: "alpha", running: true, disks: []lab.Disk{block}},
		{name: "bravo", running: true, disks: []lab.Disk{block, file}},
		{name: "charlie", running: true, disks: []lab.Disk{file}},
		{name: "delta", disks: []lab.Disk{block}},
	}
	for _, m := range d.machines {
		d.must(d.CreateClaims(ctx, m.name, m.disks...))
		vm, err := d.Machine(m.name, lab.TestSystem, map[string]string{lab.TrackingLabel: "true"}, m.disks...)
		d.must(err)
		if m.running {
			*vm.Spec.RunStrategy = kubevirtv1.RunStrategyAlways
		}
		var claims, paths []string
		for _, disk := range m.disks {
			claims = append(claims, lab.ClaimName(m.name, disk.Name))
			paths = append(paths, toolboxPath(claims[len(claims)-1], disk.Block))
		}
		box, err := d.Toolbox(ctx, "fill-"+m.name, claims...)
		d.must(err)
		for i, disk := range m.disks {
			if !disk.Block {
				_, err := box.Run(ctx, fmt.Sprintf("truncate -s %d %s", disk.Bytes/8*7, paths[i]))
				d.must(err)
			}
		}
		run := func(script string) (string, error) { return box.Run(ctx, script+"sync") }
		d.must(m.write(run, true, paths...))
		d.must(box.Close(ctx))
		d.must(d.Create(ctx, vm))
	}
	for _, m := range d.machines {
		if m.running {
			_, err := d.WaitAgent(ctx, m.name, 5*time.Minute)
			d.must(err)
			d.must(d.WaitTracking(ctx, m.name, kubevirtv1.ChangedBlockTrackingEnabled, 2*time.Minute))
		}
	}
}

// toolboxPath returns the path of a claim's disk in a toolbox.
func toolboxPath(claim string, block bool) string {
	if block {
		return path.Join("/dev", claim)
	}
	return path.Join("/mnt", claim, "disk.img")
}

// makeSchedules gives each machine three schedules: two of backups, and one of snapshots.
func (d *scheduleDay) makeSchedules() {
	d.t.Helper()
	for _, m := range d.machines {
		for _, each := range []struct {
			name, cron  string
			kind        harvesterv1.BackupType
			annotations map[string]string
		}{
			{"twos", "*/2 * * * *", harvesterv1.Backup, map[string]string{
				harvesterv1.AnnotationLocation: d.at.Name, harvesterv1.AnnotationKeepHourly: fmt.Sprint(scheduleHours),
			}},
			{"threes", "*/3 * * * *", harvesterv1.Backup, map[string]string{
				harvesterv1.AnnotationLocation: d.at.Name, harvesterv1.AnnotationJitter: "1m",
			}},
			{"fives", "*/5 * * * *", harvesterv1.Snapshot, map[string]string{}},
		} {
			each.annotations[harvesterv1.AnnotationSkipCronCheck] = "enable"
			o := gen.Schedule(gen.Meta(d.Namespace, m.name+"-"+each.name), m.name, func(o *harvesterv1.ScheduleVMBackup) {
				o.Annotations = each.annotations
				o.Spec.Cron, o.Spec.Retain, o.Spec.MaxFailure = each.cron, scheduleRetain, 2
				o.Spec.VMBackupSpec.Type = each.kind
			})
			d.must(d.Create(d.t.Context(), o))
			d.schedules = append(d.schedules, o)
		}
	}
}

// keepWriting writes a generation after the other, until ctx ends. A guest that was killed comes back.
func (d *scheduleDay) keepWriting(ctx context.Context, m *dayMachine) {
	var paths []string
	for _, disk := range m.disks {
		paths = append(paths, fmt.Sprintf(guestDisk, disk.Name))
	}
	for pause(ctx, writeEvery) {
		err := m.write(func(script string) (string, error) {
			g, err := d.Guest(ctx, m.name)
			if err != nil {
				return "", err
			}
			return g.Run(ctx, script)
		}, false, paths...)
		if err != nil && ctx.Err() == nil {
			text, _, _ := strings.Cut(err.Error(), "\n")
			d.t.Logf("%s %s: %.200s", timeOfDay(), m.name, text)
		}
	}
}

// comesBack restores a backup beside its machine, and compares its disks with what the machine had written.
func (d *scheduleDay) comesBack(b *harvesterv1.VirtualMachineBackup, name string) {
	d.t.Helper()
	ctx := d.t.Context()
	m := d.machines[slices.IndexFunc(d.machines, func(m *dayMachine) bool { return m.name == b.Spec.Source.Name })]
	r, err := d.RestoreMachine(ctx, &lab.MachineBackup{VirtualMachineBackup: b}, name, 5*time.Minute)
	d.must(err)
	var claims []string
	byVolume := map[string]string{}
	for _, v := range r.Status.VolumeRestores {
		claims = append(claims, v.PersistentVolumeClaim.ObjectMeta.Name)
		mode := ptr.Deref(v.PersistentVolumeClaim.Spec.VolumeMode, corev1.PersistentVolumeFilesystem)
		byVolume[v.VolumeName] = toolboxPath(claims[len(claims)-1], mode == corev1.PersistentVolumeBlock)
	}
	oldest, newest := m.span(b.CreationTimestamp.Time, b.Status.CreationTime.Add(time.Second))
	box, err := d.Toolbox(ctx, "compare", claims...)
	d.must(err)
	var have []int
	for _, disk := range m.disks {
		n := 0
		if at, ok := byVolume[disk.Name]; ok {
			n, err = readGeneration(ctx, box, at)
			d.must(err)
		}
		if n < max(oldest, 1) || n > newest {
			verdict.Errorf(d.t, "%s of %s, disk %s: it has generation %d, and the disk had one of %d to %d", b.Name, m.name,
				disk.Name, n, oldest, newest)
		}
		have = append(have, n)
		d.compared++
	}
	if slices.Min(have) > 0 && !m.isOneMoment(have) {
		verdict.Errorf(d.t, "%s of %s: the disks have generations %v, which are not of one moment", b.Name, m.name, have)
	}
	d.must(box.Close(ctx))
	vm := &kubevirtv1.VirtualMachine{ObjectMeta: gen.Meta(d.Namespace, name)}
	for _, o := range []client.Object{r, vm} {
		d.must(d.Delete(ctx, o))
		d.must(d.WaitGone(ctx, o, 2*time.Minute))
	}
	for _, claim := range claims {
		o := &corev1.PersistentVolumeClaim{ObjectMeta: gen.Meta(d.Namespace, claim)}
		d.must(client.IgnoreNotFound(d.Delete(ctx, o)))
		d.must(d.WaitGone(ctx, o, 2*time.Minute))
	}
}

// deleteAll deletes the schedules and the backups, and waits until nothing is left that was not there before.
func (d *scheduleDay) deleteAll(before []string) {
	d.t.Helper()
	ctx := d.t.Context()
	for _, kind := range []client.Object{&harvesterv1.ScheduleVMBackup{}, &harvesterv1.VirtualMachineBackup{}} {
		d.must(d.DeleteAllOf(ctx, kind, client.InNamespace(d.Namespace)))
	}
	d.waitOnly(nil)
	d.waitNothingLeft(before)
	d.must(d.at.Remove(ctx))
}
