package metric

import (
	"cmp"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
)

// record is what is known about the ended backups of one machine. A nil record knows none.
type record struct {
	// last is the backup that ended last, success the successful one that shows the newest point in time.
	last, success *ended
}

// ended is what the metrics need of a backup that has ended.
type ended struct {
	mode, kind, result, reason string
	// shows is the point in time that the backup shows. It is zero if the backup never got that far.
	shows time.Time
	end   time.Time
	moved int64
	// fallbacks counts the disks that are full although they had a base and nobody asked for it.
	fallbacks map[string]float64
}

// machineOf returns the machine that a backup is of. The name is empty if nobody could tell.
func machineOf(b *backupv1.VirtualMachineBackup) types.NamespacedName {
	name := b.Status.SourceName
	if name == "" {
		name = b.Spec.MachineName()
	}
	return types.NamespacedName{Namespace: b.Namespace, Name: name}
}

func endOf(b *backupv1.VirtualMachineBackup) *ended {
	s := &b.Status
	e := &ended{
		mode: string(backupv1.PushMode), kind: cmp.Or(string(s.BackupType), "None"), result: string(s.Result),
		reason: s.Reason, moved: max(s.MovedBytes, 0),
		shows: timeOf(s.StartTimestamp), end: timeOf(s.CompletionTimestamp), fallbacks: map[string]float64{},
	}
	if b.Spec.IsPull() {
		e.mode = string(backupv1.PullMode)
	}
	if e.result == "" { // it failed before it copied anything
		e.result = string(backupv1.BackupUnsuccessful)
	}
	for i := range s.IncludedVolumes {
		if reason := s.IncludedVolumes[i].FullReason; b.Spec.TrackerName() != "" && isFallback(reason) {
			e.fallbacks[string(reason)]++
		}
	}
	return e
}

func timeOf(t *metav1.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.Time
}

func (e *ended) duration() time.Duration {
	if e.shows.IsZero() || e.end.IsZero() {
		return 0
	}
	return max(e.end.Sub(e.shows), 0)
}

// isFallback reports whether a disk is full although the user wanted it incremental and the tracker had a checkpoint.
func isFallback(r backupv1.FullReason) bool {
	switch r {
	case "", backupv1.FullNoTracker, backupv1.FullNoCheckpoint, backupv1.FullForced:
		return false
	default:
		return true
	}
}

// add takes a backup into the record, in any order and any number of times.
func (r *record) add(e *ended) {
	if r.last == nil || !e.end.Before(r.last.end) {
		r.last = e
	}
	if e.result == string(backupv1.BackupSucceeded) && (r.success == nil || !e.shows.Before(r.success.shows)) {
		r.success = e
	}
}

// collect reports what the backups of vm are. The trackers also know when the last success was, and still do when the
// user has deleted the backup.
func (r *record) collect(ch chan<- prometheus.Metric, vm *kubevirtv1.VirtualMachine, trackers []*backupv1.VirtualMachineBackupTracker) {
	if r == nil {
		r = &record{}
	}
	created := vm.CreationTimestamp.Time
	var newest time.Time
	for _, t := range trackers {
		if c := t.Status.LatestCheckpoint; c != nil && c.CreationTime.After(newest) {
			newest = c.CreationTime.Time
		}
	}
	if e := r.success; e != nil && !e.shows.Before(created) {
		if e.shows.After(newest) {
			newest = e.shows
		}
		sendGauge(ch, lastDuration, e.duration().Seconds(), vm.Namespace, vm.Name)
		sendGauge(ch, lastMoved, float64(e.moved), vm.Namespace, vm.Name)
		for reason, n := range e.fallbacks {
			sendGauge(ch, lastFallbacks, n, vm.Namespace, vm.Name, reason)
		}
	}
	if !newest.IsZero() && !newest.Before(created) {
		sendGauge(ch, lastSuccess, unixSeconds(newest), vm.Namespace, vm.Name)
	}
	if e := r.last; e != nil && !e.end.Before(created) {
		sendGauge(ch, lastResult, 1, vm.Namespace, vm.Name, e.kind, e.result, e.reason)
	}
}

// CountEnd counts a backup whose final phase has just been written.
func (s *Set) CountEnd(b *backupv1.VirtualMachineBackup) {
	e, machine := endOf(b), machineOf(b)
	if !e.shows.IsZero() && !e.end.IsZero() {
		s.duration.WithLabelValues(e.kind, e.result).Observe(e.duration().Seconds())
	}
	if b.Status.FrozenMillis != nil {
		s.frozen.Observe(float64(*b.Status.FrozenMillis) / 1000)
	}
	if machine.Name == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remember(machine, e)
	s.backups.WithLabelValues(machine.Namespace, machine.Name, e.mode, e.kind, e.result, e.reason).Inc()
	s.moved.WithLabelValues(machine.Namespace, machine.Name, e.mode, e.kind).Add(float64(e.moved))
	for reason, n := range e.fallbacks {
		s.fallbacks.WithLabelValues(machine.Namespace, machine.Name, reason).Add(n)
	}
}

// remember takes a backup into its machine's record. The caller holds s.mu.
func (s *Set) remember(machine types.NamespacedName, e *ended) {
	if s.records[machine] == nil {
		s.records[machine] = &record{}
	}
	s.records[machine].add(e)
}
