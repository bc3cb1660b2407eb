// Package metric holds the store's Prometheus metrics: the disks of its node, its volumes, the copies that are being
// made, and what failed. docs/metrics.md lists them. What becomes of images is in the controller's metrics, by image.
package metric

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/version"
)

// Operations that fail.
const (
	// OperationLook is a look at all disks and copies, with the report about them.
	OperationLook = "look"
	// OperationCopy is an attempt to make the copy of an image.
	OperationCopy = "copy"
	// OperationVolume is a call of kubelet or of the provisioner for a volume.
	OperationVolume = "volume"
)

// Disk is a disk of spec.disks. Sizes are in bytes.
type Disk struct {
	Name, Reason string
	// Known is false if the store cannot tell how large the disk is, because it does not answer.
	Known                                      bool
	Ready                                      bool
	Capacity, Available, Provisioned, Reserved int64
	// Volumes is how many volumes it has.
	Volumes int
	// Images are the copies of images on it.
	Images []Image
	// Scrubbed says that its copies are read now and then. Pieces are those that were found to be wrong, and that were
	// replaced, since the disk was opened.
	Scrubbed                  bool
	BadPieces, RepairedPieces int64
}

// Image is the copy of an image on a disk.
type Image struct {
	Name string
	// Damaged says that the copy is not what was sealed, and was not repaired yet.
	Damaged bool
	// LastRead is when it was last read as a whole, or first seen. It is zero if nobody reads it.
	LastRead time.Time
}

var (
	info = prometheus.NewDesc("varve_store_info", "1 for the store of a node, with its version.",
		[]string{"node", "version"}, nil)
	diskReady = prometheus.NewDesc("varve_store_disk_ready",
		"1 for each disk that can be used, otherwise 0, with the reason of its condition Ready.",
		[]string{"node", "disk", "reason"}, nil)
	diskCapacity = prometheus.NewDesc("varve_store_disk_capacity_bytes",
		"Size of the disk. Absent while it cannot be told.", diskLabels, nil)
	diskAvailable = prometheus.NewDesc("varve_store_disk_available_bytes",
		"What is free on the disk. Absent while it cannot be told.", diskLabels, nil)
	diskProvisioned = prometheus.NewDesc("varve_store_disk_provisioned_bytes",
		"Size of the volumes on the disk, which take space when they are written. Absent while it cannot be told.",
		diskLabels, nil)
	diskReserved = prometheus.NewDesc("varve_store_disk_reserved_bytes",
		"How much of the disk stays free for volumes that are there: storageReserved.", diskLabels, nil)
	volumes = prometheus.NewDesc("varve_store_volumes", "Volumes on the node's disks, by state: attached or detached.",
		[]string{"node", "state"}, nil)
	copyProgress = prometheus.NewDesc("varve_store_copy_progress_ratio",
		"How much of a copy that is being made is there, from 0 to 1.", []string{"node", "disk", "image"}, nil)
	imageDamaged = prometheus.NewDesc("varve_store_image_damaged",
		"1 for each copy of an image that is damaged and was not repaired yet, otherwise 0.",
		[]string{"node", "disk", "image"}, nil)
	imageLastRead = prometheus.NewDesc("varve_store_image_last_scrub_timestamp_seconds",
		"When the scrub last read the whole copy, or first saw it if it has not read it yet, in Unix time. Absent if the "+
			"scrub is off.", []string{"node", "disk", "image"}, nil)
	badPieces = prometheus.NewDesc("varve_store_scrub_bad_pieces_total",
		"Pieces of copies of images (1 MiB each) that were wrong or could not be read. Absent if the scrub is off.",
		diskLabels, nil)
	repairedPieces = prometheus.NewDesc("varve_store_scrub_repaired_pieces_total",
		"Pieces of copies of images (1 MiB each) that were replaced with those of other copies. Absent if the scrub is off.",
		diskLabels, nil)
	lastReport = prometheus.NewDesc("varve_store_last_report_timestamp_seconds",
		"When the store last wrote its report, in Unix time. Absent before the first one.", []string{"node"}, nil)

	diskLabels = []string{"node", "disk"}
)

// Set is one store's metrics. Its methods are safe for concurrent use.
type Set struct {
	node     string
	attached func() int
	failures *prometheus.CounterVec

	mu       sync.Mutex
	disks    []Disk
	copies   []longhornv1.BackingImageV2CopyInfo
	names    map[string]string
	reported time.Time
}

// New returns the metrics of the store of a node. attached counts the volumes that have a device.
func New(node string, attached func() int) *Set {
	s := &Set{node: node, attached: attached}
	s.failures = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "varve_store_errors_total",
		Help: "What failed and is tried again, by operation: look (at all disks and copies, with the report), copy (of an " +
			"image), or volume (a call of kubelet for one).",
	}, []string{"node", "operation"})
	for _, operation := range []string{OperationLook, OperationCopy, OperationVolume} {
		s.failures.WithLabelValues(node, operation)
	}
	return s
}

// Failed counts an operation that failed.
func (s *Set) Failed(operation string) { s.failures.WithLabelValues(s.node, operation).Inc() }

// Looked notes what the store has found and reported. names are those of the disks by their UUIDs.
func (s *Set) Looked(
	disks []Disk, copies []longhornv1.BackingImageV2CopyInfo, names map[string]string, reported time.Time,
) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.disks, s.copies, s.names, s.reported = disks, copies, names, reported
}

// Describe implements prometheus.Collector.
func (s *Set) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		info, diskReady, diskCapacity, diskAvailable, diskProvisioned, diskReserved, volumes, copyProgress, lastReport,
		imageDamaged, imageLastRead, badPieces, repairedPieces,
	} {
		ch <- d
	}
	s.failures.Describe(ch)
}

// Collect implements prometheus.Collector.
func (s *Set) Collect(ch chan<- prometheus.Metric) {
	send := func(desc *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, append([]string{s.node}, labels...)...)
	}
	send(info, 1, version.Version)
	s.failures.Collect(ch)
	attached := s.attached()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reported.IsZero() {
		return // nothing is known yet
	}
	send(lastReport, float64(s.reported.Unix()))
	all := 0
	for _, d := range s.disks {
		all += d.Volumes
		ready := 0.0
		if d.Ready {
			ready = 1
		}
		send(diskReady, ready, d.Name, d.Reason)
		send(diskReserved, float64(d.Reserved), d.Name)
		if d.Known {
			send(diskCapacity, float64(d.Capacity), d.Name)
			send(diskAvailable, float64(d.Available), d.Name)
			send(diskProvisioned, float64(d.Provisioned), d.Name)
		}
		s.collectImages(ch, &d)
	}
	send(volumes, float64(attached), "attached")
	send(volumes, float64(max(0, all-attached)), "detached")
	for _, c := range s.copies {
		if name, ok := s.names[c.DiskUUID]; ok && c.State == longhornv1.StateInProgress {
			send(copyProgress, float64(c.Progress)/100, name, c.Name)
		}
	}
}

// collectImages reports the copies of images on a disk.
func (s *Set) collectImages(ch chan<- prometheus.Metric, d *Disk) {
	send := func(desc *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, kind, value, append([]string{s.node, d.Name}, labels...)...)
	}
	if d.Scrubbed {
		send(badPieces, prometheus.CounterValue, float64(d.BadPieces))
		send(repairedPieces, prometheus.CounterValue, float64(d.RepairedPieces))
	}
	for _, i := range d.Images {
		damaged := 0.0
		if i.Damaged {
			damaged = 1
		}
		send(imageDamaged, prometheus.GaugeValue, damaged, i.Name)
		if !i.LastRead.IsZero() {
			send(imageLastRead, prometheus.GaugeValue, float64(i.LastRead.Unix()), i.Name)
		}
	}
}
