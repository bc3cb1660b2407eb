// Package metric holds the handler's Prometheus metrics. They count what this node did. The controller's metrics,
// which do not have "handler" in their names, count objects.
package metric

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
)

// Set is one handler's metrics. Its methods are safe for concurrent use.
type Set struct {
	guests    *prometheus.GaugeVec
	mounts    prometheus.Gauge
	backups   *prometheus.CounterVec
	moved     *prometheus.CounterVec
	duration  *prometheus.HistogramVec
	frozen    prometheus.Histogram
	fallbacks *prometheus.CounterVec
	discarded *prometheus.CounterVec
}

// New registers the metrics.
func New(r prometheus.Registerer) (*Set, error) {
	s := &Set{
		guests: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "varve_handler_guests", Help: "Guests on this node by the phase that their launcher reports.",
		}, []string{"phase"}),
		mounts: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "varve_handler_utility_mounts", Help: "Utility volumes that are mounted into launchers on this node.",
		}),
		backups: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "varve_handler_backups_total", Help: "Backups that ended on this node.",
		}, []string{"type", "result"}),
		moved: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "varve_handler_backup_moved_bytes_total", Help: "Bytes that backups wrote to their targets.",
		}, []string{"type"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "varve_handler_backup_copy_seconds", Help: "From the point in time until everything is durable on the target.",
			Buckets: prometheus.ExponentialBuckets(0.25, 4, 10),
		}, []string{"type"}),
		frozen: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "varve_handler_backup_frozen_seconds", Help: "How long a guest's file systems were frozen for a backup.",
			Buckets: prometheus.ExponentialBuckets(0.005, 2, 12),
		}),
		fallbacks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "varve_handler_full_fallbacks_total", Help: "Disks that a backup with a tracker copied in full, by reason.",
		}, []string{"reason"}),
		discarded: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "varve_handler_discarded_disks_total", Help: "Disks taken out of a tracker's checkpoint, by reason.",
		}, []string{"reason"}),
	}
	for _, c := range []prometheus.Collector{s.guests, s.mounts, s.backups, s.moved, s.duration, s.frozen, s.fallbacks, s.discarded} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Guests sets the number of guests in each phase.
func (s *Set) Guests(byPhase map[string]int) {
	s.guests.Reset()
	for phase, n := range byPhase {
		s.guests.WithLabelValues(phase).Set(float64(n))
	}
}

// Mounts sets the number of mounted utility volumes.
func (s *Set) Mounts(n int) { s.mounts.Set(float64(n)) }

// Copied counts a backup that is complete on the target. copying is the time since the backup's point in time.
func (s *Set) Copied(status *backupv1.VirtualMachineBackupStatus, copying time.Duration) {
	kind := string(status.BackupType)
	s.backups.WithLabelValues(kind, "Copied").Inc()
	s.moved.WithLabelValues(kind).Add(float64(status.MovedBytes))
	s.duration.WithLabelValues(kind).Observe(copying.Seconds())
	if status.FrozenMillis != nil {
		s.frozen.Observe((time.Duration(*status.FrozenMillis) * time.Millisecond).Seconds())
	}
}

// Failed counts a backup that failed on this node.
func (s *Set) Failed(status *backupv1.VirtualMachineBackupStatus) {
	s.backups.WithLabelValues(string(status.BackupType), status.Reason).Inc()
}

// Fallback counts a disk that is copied in full although its backup uses a tracker.
func (s *Set) Fallback(reason backupv1.FullReason) { s.fallbacks.WithLabelValues(string(reason)).Inc() }

// Discarded counts a disk that lost its checkpoint.
func (s *Set) Discarded(reason backupv1.FullReason) {
	s.discarded.WithLabelValues(string(reason)).Inc()
}
