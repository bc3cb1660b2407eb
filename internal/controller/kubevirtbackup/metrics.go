package kubevirtbackup

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
)

// measures are the Prometheus metrics of ended backups. They count this process's status writes, so a backup that
// ends is counted once, unless the controller dies between the write and the count.
type measures struct {
	total     *prometheus.CounterVec
	duration  *prometheus.HistogramVec
	moved     *prometheus.CounterVec
	frozen    prometheus.Histogram
	fallbacks *prometheus.CounterVec
}

func newMeasures(r prometheus.Registerer) (*measures, error) {
	m := &measures{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "varve_backups_total",
			Help: "Backups that ended, by type (Full, Incremental, or None when nothing was planned), result (Succeeded, Failed) and reason.",
		}, []string{"type", "result", "reason"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "varve_backup_duration_seconds",
			Help:    "Seconds from the point in time that a backup shows to its end.",
			Buckets: prometheus.ExponentialBuckets(0.5, 2, 18),
		}, []string{"type", "result"}),
		moved: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "varve_backup_moved_bytes_total",
			Help: "Bytes that backups wrote to their targets.",
		}, []string{"type"}),
		frozen: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "varve_backup_frozen_seconds",
			Help:    "Seconds for which a backup froze the guest's file systems.",
			Buckets: prometheus.ExponentialBuckets(0.005, 2, 14),
		}),
		fallbacks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "varve_backup_full_fallbacks_total",
			Help: "Disks that were backed up in full although the backup had a tracker and did not ask for it, by reason.",
		}, []string{"reason"}),
	}
	return m, errors.Join(
		registerOrReuse(r, &m.total), registerOrReuse(r, &m.duration), registerOrReuse(r, &m.moved), registerOrReuse(r, &m.frozen), registerOrReuse(r, &m.fallbacks))
}

// registerOrReuse adds a metric, or returns in *c the one that an earlier manager of this process added.
func registerOrReuse[T prometheus.Collector](r prometheus.Registerer, c *T) error {
	err := r.Register(*c)
	var already prometheus.AlreadyRegisteredError
	if !errors.As(err, &already) {
		return err
	}
	existing, ok := already.ExistingCollector.(T)
	if !ok {
		return err
	}
	*c = existing
	return nil
}

// countEnd counts a backup that has reached a final phase.
func (m *measures) countEnd(tracked bool, s *backupv1.VirtualMachineBackupStatus) {
	kind, result := string(s.BackupType), string(s.Result)
	if kind == "" {
		kind = "None"
	}
	m.total.WithLabelValues(kind, result, s.Reason).Inc()
	m.moved.WithLabelValues(kind).Add(float64(max(s.MovedBytes, 0)))
	if s.StartTimestamp != nil && s.CompletionTimestamp != nil {
		m.duration.WithLabelValues(kind, result).Observe(max(s.CompletionTimestamp.Sub(s.StartTimestamp.Time).Seconds(), 0))
	}
	if s.FrozenMillis != nil {
		m.frozen.Observe(float64(*s.FrozenMillis) / 1000)
	}
	for i := range s.IncludedVolumes {
		if reason := s.IncludedVolumes[i].FullReason; tracked && isFallback(reason) {
			m.fallbacks.WithLabelValues(string(reason)).Inc()
		}
	}
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
