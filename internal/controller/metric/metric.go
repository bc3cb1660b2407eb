// Package metric holds the controller's Prometheus metrics about machines, their backups and their schedules, about the
// data mover's locations, repositories and kept snapshots, and about images. docs/metrics.md lists them.
//
// Gauges are computed from the objects on each scrape, so that none can drift. What they say about backups that have
// ended, which are in no cache, is read from the API server once when the process gets the lease, and kept as one
// record per machine from then on. Kept snapshots, which are in no cache either, are those of the last look of package
// keptsnapshot, which looks every minute. Counters and histograms count the status writes of this process: a backup that
// ends is counted once, unless the controller dies between the write and the count.
//
// What is said of a schedule is what its controller last wrote to its status.
//
// Series of a machine end when the machine is deleted. A backup counts only for the machine that exists: one that
// showed an earlier machine of the same name is left out.
//
// Only the process that has the lease reports, so that two replicas do not count everything twice.
package metric

// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines;virtualmachineinstances,verbs=get;list;watch
// +kubebuilder:rbac:groups=backup.kubevirt.io,resources=virtualmachinebackups;virtualmachinebackuptrackers,verbs=get;list;watch
// +kubebuilder:rbac:groups=velero.io,resources=backupstoragelocations;backuprepositories,verbs=get;list;watch
// +kubebuilder:rbac:groups=harvesterhci.io,resources=virtualmachinebackups;schedulevmbackups,verbs=get;list;watch

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/version"
)

// readTimeout limits one scrape's reads of the cache.
const readTimeout = 5 * time.Second

// Set is one controller's metrics: a Collector to register, and a Runnable for the manager. Its methods are safe for
// concurrent use.
type Set struct {
	// cached reads machines, instances, trackers, the backups that have not ended, locations and repositories.
	cached client.Reader
	// live reads the backups that have ended.
	live client.Reader
	// leading is closed when this process has the lease.
	leading <-chan struct{}

	// BesideKubeVirt leaves out what trackers and backups of backup.kubevirt.io say: KubeVirt moves a tracker whether or not
	// anything was stored. Set it before the first scrape.
	BesideKubeVirt bool

	backups   *prometheus.CounterVec
	moved     *prometheus.CounterVec
	fallbacks *prometheus.CounterVec
	duration  *prometheus.HistogramVec
	frozen    prometheus.Histogram

	// Movements are those of DataUploads and DataDownloads.
	Movements *Movements

	mu sync.Mutex
	// historyRead says that records has what the API server had when this process got the lease.
	historyRead bool
	// records has what is known about the ended backups of each machine.
	records map[types.NamespacedName]*record
	// kept has how many kept snapshots there were when they were last looked at.
	kept map[KeptSnapshots]int
	// imagesIn is the namespace whose images are reported, or "".
	imagesIn string
}

// New returns the metrics of the process that has the lease once leading is closed.
func New(cached, live client.Reader, leading <-chan struct{}) *Set {
	return &Set{
		cached: cached, live: live, leading: leading, records: map[types.NamespacedName]*record{},
		Movements: NewMovements(),
		backups: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "varve_backups_total",
			Help: "Backups that ended, by machine, mode (push or pull), type (Full, Incremental, or None if nothing was planned), result (Succeeded or Failed) and reason.",
		}, []string{"namespace", "vm", "mode", "type", "result", "reason"}),
		moved: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "varve_backup_moved_bytes_total",
			Help: "Bytes that backups wrote to their targets or, in pull mode, that clients read from them, by machine, mode and type.",
		}, []string{"namespace", "vm", "mode", "type"}),
		fallbacks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "varve_backup_full_fallbacks_total",
			Help: "Disks that were backed up in full although they had a base and nobody asked for it, by machine and reason.",
		}, []string{"namespace", "vm", "reason"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "varve_backup_duration_seconds",
			Help:    "Time from the point in time that a backup shows to its end, by type and result.",
			Buckets: prometheus.ExponentialBuckets(0.5, 2, 18),
		}, []string{"type", "result"}),
		frozen: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "varve_backup_frozen_seconds",
			Help:    "How long backups froze the file systems of their guests.",
			Buckets: prometheus.ExponentialBuckets(0.005, 2, 14),
		}),
	}
}

// Gauges, by what they are computed from.
var (
	info = prometheus.NewDesc("varve_controller_info",
		"1 for the controller that has the lease, with its version.", []string{"version"}, nil)

	instances = prometheus.NewDesc("varve_vmis",
		"Instances by namespace, node (empty before they have one) and phase.", []string{"namespace", "node", "phase"}, nil)

	machineInfo = prometheus.NewDesc("varve_vm_info",
		"1 for each machine, with its printable status and the state of changed block tracking (None: it was never on).",
		[]string{"namespace", "vm", "status", "changed_block_tracking"}, nil)
	machineCreated = prometheus.NewDesc("varve_vm_created_timestamp_seconds",
		"When the machine was created, in Unix time.", machineLabels, nil)

	lastSuccess = prometheus.NewDesc("varve_backup_last_success_timestamp_seconds",
		"The point in time that the machine's newest successful backup shows, in Unix time. Absent if there is none.", machineLabels, nil)
	lastDuration = prometheus.NewDesc("varve_backup_last_success_duration_seconds",
		"Time from the point in time that the machine's newest successful backup shows to its end.", machineLabels, nil)
	lastMoved = prometheus.NewDesc("varve_backup_last_success_moved_bytes",
		"Bytes that the machine's newest successful backup wrote to its target or, in pull mode, that clients read from it.", machineLabels, nil)
	lastFallbacks = prometheus.NewDesc("varve_backup_last_success_full_fallbacks",
		"Disks that the machine's newest successful backup has in full although they had a base and nobody asked for it, by reason.",
		[]string{"namespace", "vm", "reason"}, nil)
	lastResult = prometheus.NewDesc("varve_backup_last_result",
		"1 for the machine's backup that ended last, with its type, result and reason.", []string{"namespace", "vm", "type", "result", "reason"}, nil)

	unfinished = prometheus.NewDesc("varve_backup_created_timestamp_seconds",
		"When each backup that has not ended was created, in Unix time, with its phase and, as reason, what it waits for or does.",
		[]string{"namespace", "vm", "backup", "phase", "reason"}, nil)
	discarded = prometheus.NewDesc("varve_tracker_discarded_disks",
		"Disks that lost their base since the tracker's last backup, so that their next one is full, by reason.",
		[]string{"namespace", "vm", "tracker", "reason"}, nil)
)

var machineLabels = []string{"namespace", "vm"}

// Describe implements prometheus.Collector.
func (s *Set) Describe(ch chan<- *prometheus.Desc) {
	for _, described := range [][]*prometheus.Desc{{
		info, instances, machineInfo, machineCreated, lastSuccess, lastDuration, lastMoved, lastFallbacks, lastResult,
		unfinished, discarded,
	}, moverDescriptions, imageDescriptions} {
		for _, d := range described {
			ch <- d
		}
	}
	for _, c := range s.counted() {
		c.Describe(ch)
	}
}

func (s *Set) counted() []prometheus.Collector {
	return []prometheus.Collector{s.backups, s.moved, s.fallbacks, s.duration, s.frozen, s.Movements}
}

// Collect implements prometheus.Collector. A metric whose objects cannot be read is absent: a zero would be wrong, and
// an error would hide every other metric.
func (s *Set) Collect(ch chan<- prometheus.Metric) {
	select {
	case <-s.leading:
	default:
		return
	}
	sendGauge(ch, info, 1, version.Version)
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	if !s.BesideKubeVirt {
		s.collectInstances(ctx, ch)
		s.collectUnfinished(ctx, ch)
		s.collectMachines(ctx, ch)
	}
	s.collectLocations(ctx, ch)
	s.collectRepositories(ctx, ch)
	s.collectKept(ch)
	s.collectImages(ctx, ch)
	s.collectStores(ctx, ch)
	for _, c := range s.counted() {
		c.Collect(ch)
	}
}

func sendGauge(ch chan<- prometheus.Metric, desc *prometheus.Desc, value float64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
}

func (s *Set) collectInstances(ctx context.Context, ch chan<- prometheus.Metric) {
	var list kubevirtv1.VirtualMachineInstanceList
	if err := s.cached.List(ctx, &list); err != nil {
		return
	}
	type labels struct{ namespace, node, phase string }
	counts := map[labels]float64{}
	for i := range list.Items {
		v := &list.Items[i]
		counts[labels{v.Namespace, v.Status.NodeName, cmp.Or(string(v.Status.Phase),
			string(kubevirtv1.PhasePending))}]++
	}
	for l, n := range counts {
		sendGauge(ch, instances, n, l.namespace, l.node, l.phase)
	}
}

func (s *Set) collectUnfinished(ctx context.Context, ch chan<- prometheus.Metric) {
	var list backupv1.VirtualMachineBackupList
	if err := s.cached.List(ctx, &list); err != nil {
		return
	}
	for i := range list.Items {
		b := &list.Items[i]
		if b.Status.Phase.Final() {
			continue // it has ended and is about to leave the cache
		}
		phase := cmp.Or(string(b.Status.Phase), string(backupv1.BackupPending))
		sendGauge(ch, unfinished, unixSeconds(b.CreationTimestamp.Time), b.Namespace, machineOf(b).Name, b.Name, phase, b.Status.Reason)
	}
}

// collectMachines reports on machines, and drops what is known of those that are gone. Until the history is read, it
// reports nothing: a machine without a record would look as if it had never been backed up.
func (s *Set) collectMachines(ctx context.Context, ch chan<- prometheus.Metric) {
	var machines kubevirtv1.VirtualMachineList
	if err := s.cached.List(ctx, &machines); err != nil {
		return
	}
	var trackers backupv1.VirtualMachineBackupTrackerList
	if err := s.cached.List(ctx, &trackers); err != nil {
		return
	}
	ofMachine := map[types.NamespacedName][]*backupv1.VirtualMachineBackupTracker{}
	for i := range trackers.Items {
		t := &trackers.Items[i]
		key := types.NamespacedName{Namespace: t.Namespace, Name: t.Spec.Source.Name}
		ofMachine[key] = append(ofMachine[key], t)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.historyRead {
		return
	}
	s.forgetAllBut(machines.Items)
	for i := range machines.Items {
		vm := &machines.Items[i]
		key := client.ObjectKeyFromObject(vm)
		sendGauge(ch, machineInfo, 1, vm.Namespace, vm.Name,
			cmp.Or(string(vm.Status.PrintableStatus), string(kubevirtv1.VirtualMachineStopped)), trackingState(vm))
		sendGauge(ch, machineCreated, unixSeconds(vm.CreationTimestamp.Time), vm.Namespace, vm.Name)
		s.records[key].collect(ch, vm, ofMachine[key])
		for _, t := range ofMachine[key] {
			collectDiscarded(ch, t)
		}
	}
}

// forgetAllBut ends the series of the machines that are gone. The caller holds s.mu.
func (s *Set) forgetAllBut(machines []kubevirtv1.VirtualMachine) {
	present := map[types.NamespacedName]bool{}
	for i := range machines {
		present[client.ObjectKeyFromObject(&machines[i])] = true
	}
	for key := range s.records {
		if present[key] {
			continue
		}
		delete(s.records, key)
		gone := prometheus.Labels{"namespace": key.Namespace, "vm": key.Name}
		s.backups.DeletePartialMatch(gone)
		s.moved.DeletePartialMatch(gone)
		s.fallbacks.DeletePartialMatch(gone)
	}
}

func collectDiscarded(ch chan<- prometheus.Metric, t *backupv1.VirtualMachineBackupTracker) {
	counts := map[backupv1.FullReason]float64{}
	for _, d := range t.Status.Discarded {
		counts[d.Reason]++
	}
	for reason, n := range counts {
		sendGauge(ch, discarded, n, t.Namespace, t.Spec.Source.Name, t.Name, string(reason))
	}
}

func trackingState(vm *kubevirtv1.VirtualMachine) string {
	if vm.Status.ChangedBlockTracking == nil {
		return "None"
	}
	return cmp.Or(string(vm.Status.ChangedBlockTracking.State), "None")
}

func unixSeconds(t time.Time) float64 { return float64(t.Unix()) }
