// Package metric holds the handler's Prometheus metrics: what this node holds and how fast it is. docs/metrics.md lists
// them. What becomes of backups is in the controller's metrics, by machine.
package metric

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/internal/version"
)

// Set is one handler's metrics. Its methods are safe for concurrent use.
type Set struct {
	guests    *prometheus.GaugeVec
	mounts    prometheus.Gauge
	copying   *prometheus.HistogramVec
	discarded *prometheus.CounterVec
	pulls     pulls
}

// New registers the metrics of the handler of a node.
func New(r prometheus.Registerer, node string) (*Set, error) {
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "varve_handler_info", Help: "1 for the handler of a node, with its version.",
	}, []string{"node", "version"})
	info.WithLabelValues(node, version.Version).Set(1)
	s := &Set{
		guests: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "varve_handler_guests", Help: "Guests on this node by the phase that their launcher reports.",
		}, []string{"phase"}),
		mounts: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "varve_handler_utility_mounts", Help: "Utility volumes that are mounted into launchers on this node.",
		}),
		copying: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "varve_handler_backup_copy_seconds", Help: "Time from a backup's point in time until everything is durable on the target, by type.",
			Buckets: prometheus.ExponentialBuckets(0.25, 4, 10),
		}, []string{"type"}),
		discarded: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "varve_handler_discarded_disks_total", Help: "Disks that this handler took out of a tracker's checkpoint, by reason.",
		}, []string{"reason"}),
	}
	for _, c := range []prometheus.Collector{info, s.guests, s.mounts, s.copying, s.discarded, &s.pulls} {
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

// Copied reports how long a backup took from its point in time until it was complete on the target.
func (s *Set) Copied(kind backupv1.BackupType, copying time.Duration) {
	s.copying.WithLabelValues(string(kind)).Observe(copying.Seconds())
}

// Discarded counts a disk that lost its checkpoint.
func (s *Set) Discarded(reason backupv1.FullReason) {
	s.discarded.WithLabelValues(string(reason)).Inc()
}
