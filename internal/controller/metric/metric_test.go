package metric

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/test/gen"
)

// epoch is when the tests' machines are created.
var epoch = time.Unix(1_800_000_000, 0)

func at(minutes int) *metav1.Time {
	return &metav1.Time{Time: epoch.Add(time.Duration(minutes) * time.Minute)}
}

func readerOf(t *testing.T, objects ...client.Object) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		kubevirtv1.AddToScheme, backupv1.AddToScheme, velerov1.AddToScheme, longhornv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
}

func closed() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// begin returns the metrics of a controller that has just got the lease.
func begin(t *testing.T, c client.Client) *Set {
	t.Helper()
	s := New(c, c, closed())
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

func machine(name string, changes ...func(*kubevirtv1.VirtualMachine)) *kubevirtv1.VirtualMachine {
	vm := gen.VirtualMachine(gen.Meta("ns", name), gen.Guest(), changes...)
	vm.CreationTimestamp = *at(0)
	return vm
}

// backup returns a backup of the machine "vm" that ended at a minute, one minute after the point in time that it shows.
func backup(name string, end int, result backupv1.BackupResult, changes ...func(*backupv1.VirtualMachineBackup)) *backupv1.VirtualMachineBackup {
	b := gen.Backup(gen.Meta("ns", name))
	b.CreationTimestamp = *at(end - 2)
	b.Status = backupv1.VirtualMachineBackupStatus{
		Phase: backupv1.BackupDone, Result: result, Reason: backupv1.ReasonCompleted, BackupType: backupv1.Full, SourceName: "vm",
		MovedBytes: int64(end) * 100, StartTimestamp: at(end - 1), CompletionTimestamp: at(end),
	}
	if result == backupv1.BackupUnsuccessful {
		b.Status.Phase, b.Status.Reason = backupv1.BackupFailed, backupv1.ReasonTargetFull
	}
	for _, change := range changes {
		change(b)
	}
	return b
}

// series returns what s reports of the metrics with a prefix, as "name{label=value,…} value", without the histograms.
func series(t *testing.T, s prometheus.Collector, prefix string) []string {
	t.Helper()
	registry := prometheus.NewRegistry()
	if err := registry.Register(s); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if m.GetHistogram() != nil || !strings.HasPrefix(f.GetName(), prefix) {
				continue
			}
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			value := m.GetGauge().GetValue() + m.GetCounter().GetValue()
			if strings.HasSuffix(f.GetName(), "_timestamp_seconds") {
				value = (value - unixSeconds(epoch)) / 60
			}
			all = append(all, fmt.Sprintf("%s{%s} %v", f.GetName(), strings.Join(labels, ","), value))
		}
	}
	return all
}

func mustEqual(t *testing.T, got, want []string) {
	t.Helper()
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(want, got) {
		t.Error(cmp.Diff(want, got))
	}
}

// A controller that restarts knows as much about the last backups as the one before it.
func TestLastBackup_isReadFromTheObjects(t *testing.T) {
	t.Parallel()
	want := []string{
		"varve_backup_last_result{namespace=ns,reason=TargetFull,result=Failed,type=Full,vm=vm} 1",
		"varve_backup_last_success_duration_seconds{namespace=ns,vm=vm} 60",
		"varve_backup_last_success_full_fallbacks{namespace=ns,reason=BitmapLost,vm=vm} 2",
		"varve_backup_last_success_moved_bytes{namespace=ns,vm=vm} 2000",
		"varve_backup_last_success_timestamp_seconds{namespace=ns,vm=vm} 19",
	}
	fellBack := func(b *backupv1.VirtualMachineBackup) {
		gen.SetTracker("tracker")(b)
		for _, r := range []backupv1.FullReason{backupv1.FullBitmapLost, backupv1.FullBitmapLost, backupv1.FullNoCheckpoint, ""} {
			b.Status.IncludedVolumes = append(b.Status.IncludedVolumes, backupv1.IncludedVolume{FullReason: r})
		}
	}
	backups := []*backupv1.VirtualMachineBackup{
		backup("a-newest", 20, backupv1.BackupSucceeded, fellBack), backup("b-older", 10, backupv1.BackupSucceeded), backup("c-failed", 30, backupv1.BackupUnsuccessful),
		backup("d-unknown", 40, backupv1.BackupUnsuccessful, func(b *backupv1.VirtualMachineBackup) {
			gen.SetTracker("missing")(b)
			b.Status.SourceName = ""
		}),
	}
	vm := machine("vm")
	restarted := begin(t, readerOf(t, vm, backups[0], backups[1], backups[2], backups[3]))
	mustEqual(t, series(t, restarted, "varve_backup_last"), want)

	running := begin(t, readerOf(t, vm))
	for _, b := range backups {
		running.CountEnd(b)
	}
	mustEqual(t, series(t, running, "varve_backup_last"), want)
}

func TestLastSuccess_isKnownToTheTracker(t *testing.T) {
	t.Parallel()
	tracker := func(name string, minute int) *backupv1.VirtualMachineBackupTracker {
		tr := gen.Tracker(gen.Meta("ns", name), "vm")
		tr.Status.LatestCheckpoint = &backupv1.Checkpoint{CreationTime: *at(minute)}
		return tr
	}
	s := begin(t, readerOf(t, machine("vm"), tracker("a", 7), tracker("b", 5), backup("older", 4, backupv1.BackupSucceeded)))
	want := "varve_backup_last_success_timestamp_seconds{namespace=ns,vm=vm} 7"
	mustEqual(t, series(t, s, "varve_backup_last_success_timestamp"), []string{want})
}

// A machine that was deleted and made again has no backup, whatever is left of the earlier one.
func TestLastBackup_isOfTheMachineThatExists(t *testing.T) {
	t.Parallel()
	tracker := gen.Tracker(gen.Meta("ns", "tracker"), "vm")
	tracker.Status.LatestCheckpoint = &backupv1.Checkpoint{CreationTime: *at(-5)}
	s := begin(t, readerOf(t, machine("vm"), tracker, backup("old", -4, backupv1.BackupSucceeded), backup("failed", -1, backupv1.BackupUnsuccessful)))
	mustEqual(t, series(t, s, "varve_backup_last"), nil)
}

func TestSeries_endWithTheMachine(t *testing.T) {
	t.Parallel()
	vm := machine("vm")
	c := readerOf(t, vm, machine("other"))
	s := begin(t, c)
	s.CountEnd(backup("b", 10, backupv1.BackupSucceeded, func(b *backupv1.VirtualMachineBackup) {
		gen.SetTracker("tracker")(b)
		b.Status.IncludedVolumes = []backupv1.IncludedVolume{{FullReason: backupv1.FullDiskReplaced}}
	}))
	s.CountEnd(backup("o", 10, backupv1.BackupUnsuccessful, func(b *backupv1.VirtualMachineBackup) { b.Status.SourceName = "other" }))
	ofVM := func() []string {
		return slices.DeleteFunc(series(t, s, ""), func(line string) bool { return !strings.Contains(line, "vm=vm}") && !strings.Contains(line, "vm=vm,") })
	}
	if n := len(ofVM()); n != 10 {
		t.Errorf("%d series of the machine: %q", n, ofVM())
	}
	if err := c.Delete(t.Context(), vm); err != nil {
		t.Fatal(err)
	}
	mustEqual(t, ofVM(), nil)
	if len(s.records) != 1 {
		t.Errorf("records of %d machines", len(s.records))
	}
	mustEqual(t, series(t, s, "varve_backups_total"),
		[]string{"varve_backups_total{mode=push,namespace=ns,reason=TargetFull,result=Failed,type=Full,vm=other} 1"})
}

func TestEndedBackups_areCountedByMode(t *testing.T) {
	t.Parallel()
	s := begin(t, readerOf(t, machine("vm")))
	for i, mode := range []backupv1.BackupMode{"", "push", "Push", "pull", "Pull"} {
		s.CountEnd(backup(string(mode), 10+i, backupv1.BackupSucceeded, func(b *backupv1.VirtualMachineBackup) { b.Spec.Mode, b.Status.MovedBytes = mode, 1 }))
	}
	const rest = "namespace=ns,reason=Completed,result=Succeeded,type=Full,vm=vm"
	mustEqual(t, series(t, s, "varve_backups_total"), []string{"varve_backups_total{mode=pull," + rest + "} 2", "varve_backups_total{mode=push," + rest + "} 3"})
	mustEqual(t, series(t, s, "varve_backup_moved"), []string{
		"varve_backup_moved_bytes_total{mode=pull,namespace=ns,type=Full,vm=vm} 2", "varve_backup_moved_bytes_total{mode=push,namespace=ns,type=Full,vm=vm} 3",
	})
}

func TestUnfinishedBackups_sayWhatTheyWaitFor(t *testing.T) {
	t.Parallel()
	waiting := backup("waiting", 10, "", func(b *backupv1.VirtualMachineBackup) {
		b.Status = backupv1.VirtualMachineBackupStatus{Phase: backupv1.BackupPending, Reason: backupv1.ReasonNodeBusy, SourceName: "vm"}
	})
	fresh := backup("fresh", 12, "", func(b *backupv1.VirtualMachineBackup) { b.Status = backupv1.VirtualMachineBackupStatus{} })
	tracker := gen.Tracker(gen.Meta("ns", "tracker"), "vm")
	tracker.Status.Discarded = []backupv1.DiscardedDisk{{Volume: "a", Reason: backupv1.FullBitmapLost}, {Volume: "b", Reason: backupv1.FullBitmapLost}}
	s := begin(t, readerOf(t, machine("vm"), waiting, fresh, tracker, backup("ended", 3, backupv1.BackupSucceeded)))
	mustEqual(t, series(t, s, "varve_backup_created"), []string{
		"varve_backup_created_timestamp_seconds{backup=fresh,namespace=ns,phase=Pending,reason=,vm=vm} 10",
		"varve_backup_created_timestamp_seconds{backup=waiting,namespace=ns,phase=Pending,reason=NodeBusy,vm=vm} 8",
	})
	mustEqual(t, series(t, s, "varve_tracker"), []string{"varve_tracker_discarded_disks{namespace=ns,reason=BitmapLost,tracker=tracker,vm=vm} 2"})
}

func TestMachines_areReportedWithTheirTracking(t *testing.T) {
	t.Parallel()
	tracked := machine("vm", func(vm *kubevirtv1.VirtualMachine) {
		vm.Status.PrintableStatus = kubevirtv1.VirtualMachineRunning
		vm.Status.ChangedBlockTracking = &kubevirtv1.ChangedBlockTrackingStatus{State: kubevirtv1.ChangedBlockTrackingEnabled}
	})
	running := gen.VirtualMachineInstance(gen.Meta("ns", "vm"), gen.Guest(), func(i *kubevirtv1.VirtualMachineInstance) {
		i.Status.Phase, i.Status.NodeName = kubevirtv1.PhaseRunning, "node-1"
	})
	s := begin(t, readerOf(t, tracked, machine("other"), running, gen.VirtualMachineInstance(gen.Meta("ns", "other"), gen.Guest())))
	mustEqual(t, series(t, s, "varve_vm"), []string{
		"varve_vm_created_timestamp_seconds{namespace=ns,vm=other} 0",
		"varve_vm_created_timestamp_seconds{namespace=ns,vm=vm} 0",
		"varve_vm_info{changed_block_tracking=None,namespace=ns,status=Stopped,vm=other} 1",
		"varve_vm_info{changed_block_tracking=Enabled,namespace=ns,status=Running,vm=vm} 1",
		"varve_vmis{namespace=ns,node=,phase=Pending} 1",
		"varve_vmis{namespace=ns,node=node-1,phase=Running} 1",
	})
}

// A replica without the lease says nothing, and nobody calls a machine unprotected before the history is read.
func TestReports_waitForTheLeaseAndTheHistory(t *testing.T) {
	t.Parallel()
	c := readerOf(t, machine("vm"))
	leading := make(chan struct{})
	s := New(c, c, leading)
	mustEqual(t, series(t, s, ""), nil)
	close(leading)
	mustEqual(t, series(t, s, ""), []string{
		"varve_controller_info{version=devel} 1", "varve_data_upload_changed_bytes_total{} 0",
		"varve_data_upload_read_bytes_total{} 0", "varve_data_upload_stored_bytes_total{} 0",
	})
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(series(t, s, "varve_vm_info")); n != 1 {
		t.Errorf("%d machines", n)
	}
	if !s.NeedLeaderElection() {
		t.Error("every replica would read the history")
	}
}

// pages answers lists as an API server does that returns one backup at a time.
type pages struct {
	client.Reader
	backups []*backupv1.VirtualMachineBackup
	fails   bool
}

func (p *pages) List(_ context.Context, list client.ObjectList, opts ...client.ListOption) error {
	var o client.ListOptions
	o.ApplyOptions(opts)
	if p.fails || o.Limit <= 0 {
		return errors.New("no limit, or no API server")
	}
	n := 0
	if o.Continue != "" {
		if _, err := fmt.Sscan(o.Continue, &n); err != nil {
			return err
		}
	}
	found := list.(*backupv1.VirtualMachineBackupList)
	found.Items = append(found.Items, *p.backups[n])
	if n++; n < len(p.backups) {
		found.Continue = fmt.Sprint(n)
	}
	return nil
}

func TestHistory_isReadInPages(t *testing.T) {
	t.Parallel()
	c := readerOf(t, machine("vm"))
	p := &pages{backups: []*backupv1.VirtualMachineBackup{
		backup("a", 10, backupv1.BackupSucceeded), backup("b", 20, backupv1.BackupSucceeded), backup("c", 15, backupv1.BackupSucceeded),
	}}
	s := New(c, p, closed())
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustEqual(t, series(t, s, "varve_backup_last_success_timestamp"), []string{"varve_backup_last_success_timestamp_seconds{namespace=ns,vm=vm} 19"})

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	failing := New(c, &pages{fails: true}, closed())
	if err := failing.Start(ctx); err != nil || failing.historyRead {
		t.Errorf("a controller that ends reports %v, read: %v", err, failing.historyRead)
	}
}

func TestDurations_areObserved(t *testing.T) {
	t.Parallel()
	s := begin(t, readerOf(t, machine("vm")))
	s.CountEnd(backup("b", 10, backupv1.BackupSucceeded, func(b *backupv1.VirtualMachineBackup) { b.Status.FrozenMillis = ptr.To(int64(20)) }))
	s.CountEnd(backup("never began", 10, backupv1.BackupUnsuccessful, func(b *backupv1.VirtualMachineBackup) { b.Status.StartTimestamp = nil }))
	registry := prometheus.NewRegistry()
	if err := registry.Register(s); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if h := m.GetHistogram(); h != nil {
				got[f.GetName()] = append(got[f.GetName()], h.GetSampleSum())
			}
		}
	}
	if diff := cmp.Diff(map[string][]float64{"varve_backup_duration_seconds": {60}, "varve_backup_frozen_seconds": {0.02}}, got); diff != "" {
		t.Error(diff)
	}
}
