package metric

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Stages of a data movement.
const (
	// StagePrepare is from the moment that the object is taken until data begins to move.
	StagePrepare = "prepare"
	// StageMove is from then until everything that was made is gone.
	StageMove = "move"
)

// dataMovements are the metrics of DataUploads and DataDownloads.
type dataMovements struct {
	waiting, running prometheus.Gauge
	ended            *prometheus.CounterVec
	stages           *prometheus.HistogramVec
}

func newDataMovements() dataMovements {
	return dataMovements{
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "varve_handler_data_movements_waiting", Help: "DataUploads and DataDownloads in the cluster that no node has taken.",
		}),
		running: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "varve_handler_data_movements_running", Help: "DataUploads and DataDownloads that this handler drives.",
		}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "varve_handler_data_movements_total", Help: "DataUploads and DataDownloads that have ended with this handler, by kind and phase.",
		}, []string{"kind", "phase"}),
		stages: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "varve_handler_data_movement_stage_seconds", Help: "Time that DataUploads and DataDownloads spent in a stage: prepare, until data moves, or move, until they are complete.",
			Buckets: prometheus.ExponentialBuckets(0.5, 4, 9),
		}, []string{"kind", "stage"}),
	}
}

func (m *dataMovements) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.waiting, m.running, m.ended, m.stages}
}

// DataMovements sets how many objects wait in the cluster, and how many this handler drives.
func (s *Set) DataMovements(waiting, running int) {
	s.moves.waiting.Set(float64(waiting))
	s.moves.running.Set(float64(running))
}

// DataMovementEnded counts an object that ended in a phase.
func (s *Set) DataMovementEnded(kind, phase string) { s.moves.ended.WithLabelValues(kind, phase).Inc() }

// DataMovementStage reports how long an object was in a stage.
func (s *Set) DataMovementStage(kind, stage string, took time.Duration) {
	s.moves.stages.WithLabelValues(kind, stage).Observe(took.Seconds())
}
