package metric

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/varvebackup/varve/internal/export/tunnel"
)

var (
	connected = prometheus.NewDesc("varve_export_tunnel_connected", "1 while a launcher is connected.", nil, nil)
	sessions  = prometheus.NewDesc("varve_export_tunnel_sessions_total",
		"Connections on which a launcher has proven itself. All but the first of a pod are reconnects.", nil, nil)
	lost = prometheus.NewDesc("varve_export_tunnel_lost_sessions_total",
		"Connections of proven launchers that ended.", nil, nil)
	replaced = prometheus.NewDesc("varve_export_tunnel_replaced_sessions_total",
		"Connections of proven launchers that ended because the launcher connected again before anybody noticed that they were dead.", nil, nil)
	breaches = prometheus.NewDesc("varve_export_tunnel_breaches_total",
		"Connections of proven launchers that ended because the launcher broke the protocol.", nil, nil)
	refused = prometheus.NewDesc("varve_export_tunnel_refused_connections_total",
		"Connections to the tunnel that were refused: proof, version, conflict (another launcher is connected), or handshake (they never came to a proof).",
		[]string{"reason"}, nil)
)

// tunnelCollector reports what the far end of a tunnel counts.
type tunnelCollector struct{ end *tunnel.Server }

// Describe implements prometheus.Collector.
func (*tunnelCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{connected, sessions, lost, replaced, breaches, refused} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *tunnelCollector) Collect(ch chan<- prometheus.Metric) {
	up := 0.0
	if c.end.Connected() {
		up = 1
	}
	ch <- prometheus.MustNewConstMetric(connected, prometheus.GaugeValue, up)
	n := c.end.Counters()
	count := func(desc *prometheus.Desc, value int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(value), labels...)
	}
	count(sessions, n.Sessions)
	count(lost, n.Lost)
	count(replaced, n.Replaced)
	count(breaches, n.Breaches)
	count(refused, n.RefusedProofs, "proof")
	count(refused, n.RefusedVersions, "version")
	count(refused, n.RefusedConflicts, "conflict")
	count(refused, n.FailedHandshakes, "handshake")
}
