package metric

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Stages of a data movement, one after the other.
const (
	// StageWait is from the creation of the object until it has a place on a node.
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

// Movements are the metrics of DataUploads and DataDownloads. Its methods are safe for concurrent use.
type Movements struct {
	waiting, running      *prometheus.GaugeVec
	ended, failed, volume *prometheus.CounterVec
	read, changed, stored prometheus.Counter
	stages                *prometheus.HistogramVec
}

// stageSeconds are the bounds of a histogram's buckets: from a second to a day.
var stageSeconds = []float64{1, 5, 15, 60, 300, 900, 3600, 2 * 3600, 4 * 3600, 8 * 3600, 24 * 3600}

// NewMovements returns metrics that have counted nothing.
func NewMovements() *Movements {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	uploaded := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	return &Movements{
		waiting: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "varve_data_movements_waiting",
			Help: "DataUploads and DataDownloads that have no place on a node, by kind.",
		}, []string{"kind"}),
		running: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "varve_data_movements_running",
			Help: "DataUploads and DataDownloads that have a place on a node and have not ended, by kind and node.",
		}, []string{"kind", "node"}),
		ended: counter("varve_data_movements_total",
			"DataUploads and DataDownloads that have ended, by kind and phase.", "kind", "phase"),
		failed: counter("varve_data_movement_failures_total",
			"DataUploads and DataDownloads that have failed, by kind and reason.", "kind", "reason"),
		volume: counter("varve_data_movement_volume_bytes_total",
			"Size of the data that completed DataUploads and DataDownloads backed up or restored, by kind.", "kind"),
		read: uploaded("varve_data_upload_read_bytes_total",
			"Bytes that completed DataUploads read from their volumes."),
		changed: uploaded("varve_data_upload_changed_bytes_total",
			"Bytes of completed DataUploads that were new or had changed since the restore point before."),
		stored: uploaded("varve_data_upload_stored_bytes_total",
			"Bytes that completed DataUploads stored in repositories, after deduplication and compression."),
		stages: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "varve_data_movement_stage_seconds",
			Help: "Time that DataUploads and DataDownloads spent in a stage: wait, until they have a place on " +
				"a node; prepare, until data moves; move; finish, until they are complete; or cancel.",
			Buckets: stageSeconds,
		}, []string{"kind", "stage"}),
	}
}

func (m *Movements) allCollectors() []prometheus.Collector {
	return []prometheus.Collector{
		m.waiting, m.running, m.ended, m.failed, m.volume, m.read, m.changed, m.stored, m.stages,
	}
}

// Describe implements prometheus.Collector.
func (m *Movements) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.allCollectors() {
		c.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (m *Movements) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.allCollectors() {
		c.Collect(ch)
	}
}

// Now sets how many objects of a kind wait for a place, and how many have one, by node.
func (m *Movements) Now(kind string, waiting int, running map[string]int) {
	m.waiting.WithLabelValues(kind).Set(float64(waiting))
	m.running.DeletePartialMatch(prometheus.Labels{"kind": kind})
	for node, n := range running {
		m.running.WithLabelValues(kind, node).Set(float64(n))
	}
}

// Ended counts an object that ended in a phase.
func (m *Movements) Ended(kind, phase string) { m.ended.WithLabelValues(kind, phase).Inc() }

// Failed counts an object that failed for one of a few reasons.
func (m *Movements) Failed(kind, reason string) { m.failed.WithLabelValues(kind, reason).Inc() }

// Moved counts the bytes of an object that is complete.
func (m *Movements) Moved(kind string, b MovedBytes) {
	m.volume.WithLabelValues(kind).Add(atLeastZero(b.Volume))
	m.read.Add(atLeastZero(b.Read))
	m.changed.Add(atLeastZero(b.Changed))
	m.stored.Add(atLeastZero(b.Stored))
}

// atLeastZero returns n for a counter, which panics if it is to go down: the numbers are a pod's.
func atLeastZero(n int64) float64 { return float64(max(0, n)) }

// Stage reports how long an object was in a stage. Clocks of machines differ: a time below zero counts as zero.
func (m *Movements) Stage(kind, stage string, took time.Duration) {
	m.stages.WithLabelValues(kind, stage).Observe(max(0, took).Seconds())
}
