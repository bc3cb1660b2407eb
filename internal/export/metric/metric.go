// Package metric holds the Prometheus metrics of an export server: what it sends, and whom it refuses. docs/metrics.md
// lists them.
//
// There is one export in a pod, so that no label names it but that of varve_export_info. What clients and launchers say
// becomes no label: the series are bounded by the export's volumes.
package metric

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/varvebackup/varve/internal/export/server"
	"github.com/varvebackup/varve/internal/export/tunnel"
	"github.com/varvebackup/varve/internal/version"
)

// Set is the metrics of one export server. Its methods are safe for concurrent use.
type Set struct {
	// registry has nothing of the process or of the language: clients have no use for it.
	registry  *prometheus.Registry
	sent      *prometheus.CounterVec
	requests  *prometheus.SummaryVec
	responses *prometheus.CounterVec
	refused   *prometheus.CounterVec
	limited   prometheus.Counter
}

// New returns the metrics of the server of an export.
func New(namespace, export string) *Set {
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "varve_export_info", Help: "1 for the server of an export, with its version.",
	}, []string{"namespace", "export", "version"})
	info.WithLabelValues(namespace, export, version.Version).Set(1)
	s := &Set{
		registry: prometheus.NewRegistry(),
		sent: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "varve_export_sent_bytes_total",
			Help: "Bytes of disks that were sent, before compression, by volume and endpoint. A stream's zeroes do not count.",
		}, []string{"volume", "endpoint"}),
		requests: prometheus.NewSummaryVec(prometheus.SummaryOpts{
			Name: "varve_export_request_duration_seconds",
			Help: "Time that requests with the token took, by volume (empty for several or none) and endpoint (empty for unknown paths).",
		}, []string{"volume", "endpoint"}),
		responses: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "varve_export_responses_total",
			Help: "Answers to requests with the token, by endpoint and class of the status (none: the client left first). One that broke off counts by the status that it began with.",
		}, []string{"endpoint", "code"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "varve_export_refused_tokens_total",
			Help: "Requests that were refused for their token: missing, wrong, or unreadable if the server has none.",
		}, []string{"reason"}),
		limited: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "varve_export_limited_requests_total", Help: "Requests that were told to come again because too many were being served.",
		}),
	}
	s.registry.MustRegister(info, s.sent, s.requests, s.responses, s.refused, s.limited)
	return s
}

// Hooks returns what the server calls.
func (s *Set) Hooks() server.Hooks {
	return server.Hooks{
		Sent: func(volume, endpoint string, bytes int64) {
			s.sent.WithLabelValues(volume, endpoint).Add(float64(bytes))
		},
		Answered: func(volume, endpoint string, status int, took time.Duration) {
			s.requests.WithLabelValues(volume, endpoint).Observe(took.Seconds())
			s.responses.WithLabelValues(endpoint, classOf(status)).Inc()
		},
		TokenRefused: func(reason string) { s.refused.WithLabelValues(reason).Inc() },
		Limited:      s.limited.Inc,
	}
}

// classOf returns the class of a status, such as 2xx.
func classOf(status int) string {
	if status == 0 {
		return "none"
	}
	return strconv.Itoa(status/100) + "xx"
}

// AddServer adds what the server knows itself. Call it once.
func (s *Set) AddServer(of *server.Server) {
	s.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "varve_export_requests_in_flight", Help: "Requests with the token that are being served. A stream counts once for each volume that it reads.",
	}, func() float64 { return float64(of.InFlight()) }))
}

// AddTunnel adds what the far end of a backup's tunnel counts. Call it once.
func (s *Set) AddTunnel(end *tunnel.Server) { s.registry.MustRegister(&tunnelCollector{end: end}) }

// Gatherer returns the metrics.
func (s *Set) Gatherer() prometheus.Gatherer { return s.registry }

// Handler serves the metrics.
func (s *Set) Handler() http.Handler {
	return promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{})
}
