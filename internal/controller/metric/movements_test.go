package metric

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

func TestMovements_areAllServed(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	m := NewMovements()
	registry.MustRegister(m)
	m.Now("DataUpload", 3, map[string]int{"node-a": 1})
	m.Now("DataUpload", 7, map[string]int{"node-b": 6, "node-c": 2}) // nothing is left of what was before
	m.Ended("DataUpload", "Completed")
	m.Failed("DataUpload", "TimedOut")
	m.Stage("DataUpload", StageMove, 9*time.Second)
	m.Stage("DataUpload", StageMove, -time.Hour)
	m.Moved("DataUpload", MovedBytes{Volume: 40, Read: 30, Changed: 20, Stored: 10})
	m.Moved("DataDownload", MovedBytes{Volume: -1, Read: -1, Changed: -1, Stored: -1})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			got[f.GetName()] += m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetHistogram().GetSampleSum()
		}
	}
	want := map[string]float64{
		"varve_data_movements_waiting": 7, "varve_data_movements_running": 8, "varve_data_movements_total": 1,
		"varve_data_movement_stage_seconds": 9, "varve_data_movement_failures_total": 1,
		"varve_data_movement_volume_bytes_total": 40, "varve_data_upload_read_bytes_total": 30,
		"varve_data_upload_changed_bytes_total": 20, "varve_data_upload_stored_bytes_total": 10,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
