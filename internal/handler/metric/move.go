package metric

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Stages of a data movement, one after the other.
const (
	// StageWait is from the creation of the object until a handler takes it.
	StageWait = "wait"
	// StagePrepare is from then until data begins to move.
	StagePrepare = "prepare"
	// StageMove is from then until the data is where it belongs.
	StageMove = "move"
	// StageFinish is from then until everything that was made is gone.
	StageFinish = "finish"
	// StageCancel is from the cancel until everything that was made is gone.
	StageCancel = "cancel"
)

// MovedBytes is what one object moved, in bytes. What was reported as less than nothing counts as nothing.
type MovedBytes struct {
	// Volume is the size of the data that was backed up or restored.
	Volume int64
	// Read is how much of it an upload read, Changed how much of it was new or changed, and Stored how much went to the repository;
	// 0 for a download.
	Read, Changed, Stored int64
}

// dataMovements are the metrics of DataUploads and DataDownloads.
type dataMovements struct {
	waiting, running      *prometheus.GaugeVec
	ended, failed, volume *prometheus.CounterVec
	read, changed, stored prometheus.Counter
	stages                *prometheus.HistogramVec
}

// stageSeconds are the bounds of a histogram's buckets: from a second to a day.
var stageSeconds = []float64{1, 5, 15, 60, 300, 900, 3600, 2 * 3600, 4 * 3600, 8 * 3600, 24 * 3600}

func newDataMovements() dataMovements {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	uploaded := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	return dataMovements{
		waiting: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "varve_handler_data_movements_waiting", Help: "DataUploads and DataDownloads in the cluster that no node has taken, by kind. Each handler says the same.",
		}, []string{"kind"}),
		running: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "varve_handler_data_movements_running", Help: "DataUploads and DataDownloads that this handler drives, by kind.",
		}, []string{"kind"}),
		ended:  counter("varve_handler_data_movements_total", "DataUploads and DataDownloads that have ended with this handler, by kind and phase.", "kind", "phase"),
		failed: counter("varve_handler_data_movement_failures_total", "DataUploads and DataDownloads that have failed with this handler, by kind and reason.", "kind", "reason"),
		volume: counter("varve_handler_data_movement_volume_bytes_total", "Size of the data that completed DataUploads and DataDownloads backed up or restored, by kind.", "kind"),
		read:   uploaded("varve_handler_data_upload_read_bytes_total", "Bytes that completed DataUploads read from their volumes."),
		changed: uploaded("varve_handler_data_upload_changed_bytes_total",
			"Bytes of completed DataUploads that were new or had changed since the restore point before."),
		stored: uploaded("varve_handler_data_upload_stored_bytes_total",
			"Bytes that completed DataUploads stored in repositories, after deduplication and compression."),
		stages: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "varve_handler_data_movement_stage_seconds",
			Help:    "Time that DataUploads and DataDownloads spent in a stage: wait, until a node takes them; prepare, until data moves; move; finish, until they are complete; or cancel.",
			Buckets: stageSeconds,
		}, []string{"kind", "stage"}),
	}
}

func (m *dataMovements) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.waiting, m.running, m.ended, m.failed, m.volume, m.read, m.changed, m.stored, m.stages}
}

// DataMovements sets how many objects of a kind wait in the cluster, and how many this handler drives.
func (s *Set) DataMovements(kind string, waiting, running int) {
	s.moves.waiting.WithLabelValues(kind).Set(float64(waiting))
	s.moves.running.WithLabelValues(kind).Set(float64(running))
}

// DataMovementEnded counts an object that ended in a phase.
func (s *Set) DataMovementEnded(kind, phase string) { s.moves.ended.WithLabelValues(kind, phase).Inc() }

// DataMovementFailed counts an object that failed for one of a few reasons.
func (s *Set) DataMovementFailed(kind, reason string) {
	s.moves.failed.WithLabelValues(kind, reason).Inc()
}

// DataMoved counts the bytes of an object that is complete.
func (s *Set) DataMoved(kind string, b MovedBytes) {
	s.moves.volume.WithLabelValues(kind).Add(atLeastZero(b.Volume))
	s.moves.read.Add(atLeastZero(b.Read))
	s.moves.changed.Add(atLeastZero(b.Changed))
	s.moves.stored.Add(atLeastZero(b.Stored))
}

// atLeastZero returns n for a counter, which panics if it is to go down: the numbers are a pod's.
func atLeastZero(n int64) float64 { return float64(max(0, n)) }

// DataMovementStage reports how long an object was in a stage. Clocks of nodes differ: a time below zero counts as zero.
func (s *Set) DataMovementStage(kind, stage string, took time.Duration) {
	s.moves.stages.WithLabelValues(kind, stage).Observe(max(0, took).Seconds())
}
