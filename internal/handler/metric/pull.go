package metric

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
)

// Pull is what a launcher reports of a backup in pull mode.
type Pull struct {
	// Machine is the virtual machine, in the backup's namespace.
	Machine string
	// Serving says that clients can read it. Without it the gauges of the backup end.
	Serving bool
	// ReadBytes, and the sessions of all tunnels, only grow.
	ReadBytes uint64
	Sessions  int64
	// FirstSessions are those of Sessions that were the first of their tunnel. An older launcher, which has one tunnel, says 0.
	FirstSessions int64
	Connected     bool
	// ScratchUsed and ScratchFree are bytes. Both are 0 while they are not known.
	ScratchUsed, ScratchFree uint64
}

// reconnects returns how often tunnels were made again.
func (p Pull) reconnects() int64 { return max(0, p.Sessions-max(1, p.FirstSessions)) }

// pulls has the backups in pull mode of one node. Gauges are computed from it on each scrape, and there are as many as
// backups may run on a node.
type pulls struct {
	mu         sync.Mutex
	read       float64
	reconnects float64
	known      map[types.NamespacedName]pulled
}

// pulled is a backup, by its UID: there may be another one of its name.
type pulled struct {
	Pull

	uid types.UID
}

var (
	pullLabels = []string{"namespace", "vm", "backup"}

	pullRead = prometheus.NewDesc("varve_pull_read_bytes_total",
		"Bytes of disks that were read from backups in pull mode on this node. What is read twice counts twice.", nil, nil)
	pullReconnects = prometheus.NewDesc("varve_pull_tunnel_reconnects_total",
		"How often launchers on this node had to connect again to the readers of their backups.", nil, nil)
	pullConnected = prometheus.NewDesc("varve_pull_tunnel_connected",
		"1 while the launcher of a backup that can be pulled is connected to its export pod or mover, otherwise 0.", pullLabels, nil)
	pullUsed = prometheus.NewDesc("varve_pull_scratch_used_bytes",
		"What the guest has overwritten while its backup is pulled, as far as it has to be kept.", pullLabels, nil)
	pullFree = prometheus.NewDesc("varve_pull_scratch_free_bytes",
		"How much more the scratch claim of a backup that is pulled can hold. When nothing is left, the backup fails.", pullLabels, nil)
)

// Pulled takes what a launcher reports. It counts what was read, and the reconnects, since the last report of the same
// backup. What the first report has was counted by the handler before this one, if at all.
func (s *Set) Pulled(backup types.NamespacedName, uid types.UID, now Pull) {
	p := &s.pulls
	p.mu.Lock()
	defer p.mu.Unlock()
	if last, ok := p.known[backup]; ok && last.uid == uid {
		if now.ReadBytes > last.ReadBytes {
			p.read += float64(now.ReadBytes - last.ReadBytes)
		}
		p.reconnects += float64(max(0, now.reconnects()-last.reconnects()))
	}
	if p.known == nil {
		p.known = map[types.NamespacedName]pulled{}
	}
	p.known[backup] = pulled{Pull: now, uid: uid}
}

// PullEnded ends the series of a backup.
func (s *Set) PullEnded(backup types.NamespacedName) {
	s.pulls.mu.Lock()
	defer s.pulls.mu.Unlock()
	delete(s.pulls.known, backup)
}

// Describe implements prometheus.Collector.
func (*pulls) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{pullRead, pullReconnects, pullConnected, pullUsed, pullFree} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (p *pulls) Collect(ch chan<- prometheus.Metric) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ch <- prometheus.MustNewConstMetric(pullRead, prometheus.CounterValue, p.read)
	ch <- prometheus.MustNewConstMetric(pullReconnects, prometheus.CounterValue, p.reconnects)
	for name, b := range p.known {
		if !b.Serving {
			continue
		}
		gauge := func(desc *prometheus.Desc, value float64) {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, name.Namespace, b.Machine, name.Name)
		}
		up := 0.0
		if b.Connected {
			up = 1
		}
		gauge(pullConnected, up)
		if b.ScratchUsed > 0 || b.ScratchFree > 0 {
			gauge(pullUsed, float64(b.ScratchUsed))
			gauge(pullFree, float64(b.ScratchFree))
		}
	}
}
