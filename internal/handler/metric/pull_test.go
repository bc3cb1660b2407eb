package metric

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
)

// pullSeries returns what s says of backups in pull mode, by name and backup.
func pullSeries(t *testing.T, r *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += fmt.Sprintf(" %s=%s", l.GetName(), l.GetValue())
			}
			if len(name) > len("varve_pull") && name[:len("varve_pull")] == "varve_pull" {
				got[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return got
}

func TestPulled_countsWhatIsNew(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	s, err := New(registry, "node-1")
	if err != nil {
		t.Fatal(err)
	}
	name := types.NamespacedName{Namespace: "ns", Name: "monday"}
	want := func(what string, series map[string]float64) {
		t.Helper()
		if diff := cmp.Diff(series, pullSeries(t, registry)); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
	}
	none := map[string]float64{"varve_pull_read_bytes_total": 0, "varve_pull_tunnel_reconnects_total": 0}
	want("nothing yet", none)
	// This handler has started in the middle of the backup: its predecessor has counted.
	report := Pull{Machine: "web", Serving: true, ReadBytes: 1000, Sessions: 3}
	s.Pulled(name, "uid", report)
	const labels = " backup=monday namespace=ns vm=web"
	none["varve_pull_tunnel_connected"+labels] = 0
	want("the first report", none)
	report.ReadBytes, report.Sessions, report.Connected, report.ScratchUsed, report.ScratchFree = 1500, 5, true, 10, 90
	s.Pulled(name, "uid", report)
	s.Pulled(name, "uid", report)
	want("the second report, twice", map[string]float64{
		"varve_pull_read_bytes_total": 500, "varve_pull_tunnel_reconnects_total": 2, "varve_pull_tunnel_connected" + labels: 1,
		"varve_pull_scratch_used_bytes" + labels: 10, "varve_pull_scratch_free_bytes" + labels: 90,
	})
	// The gauges end with the serving, the counters stay.
	report.Serving, report.ReadBytes = false, 1600
	s.Pulled(name, "uid", report)
	ended := map[string]float64{"varve_pull_read_bytes_total": 600, "varve_pull_tunnel_reconnects_total": 2}
	want("the last report", ended)
	s.PullEnded(name)
	// Another backup of the name, whose first connection is no reconnect.
	s.Pulled(name, "another", Pull{Machine: "web", Serving: true})
	s.Pulled(name, "another", Pull{Machine: "web", Serving: true, ReadBytes: 7, Sessions: 1})
	s.PullEnded(name)
	ended["varve_pull_read_bytes_total"] = 607
	want("another backup", ended)
	// Nor does one count beside what another of its name has had, if nobody has said that it ended.
	s.Pulled(name, "third", Pull{Serving: true, ReadBytes: 100, Sessions: 4})
	s.Pulled(name, "fourth", Pull{ReadBytes: 5000, Sessions: 9})
	want("a third and a fourth", ended)
}

// The first session of each far end is no reconnect. An older launcher has one far end and does not say so.
func TestReconnects_areThoseBeyondTheFirst(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ sessions, first, want int64 }{{0, 0, 0}, {1, 0, 0}, {3, 0, 2}, {1, 1, 0}, {3, 3, 0}, {5, 3, 2}} {
		if got := (Pull{Sessions: c.sessions, FirstSessions: c.first}).reconnects(); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}
