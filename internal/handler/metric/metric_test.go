package metric

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
)

func TestMetrics_areAllServed(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	s, err := New(registry, "node-1")
	if err != nil {
		t.Fatal(err)
	}
	s.Guests(map[string]int{"RUNNING": 2})
	s.Mounts(1)
	s.Copied(backupv1.Incremental, time.Second)
	s.Discarded(backupv1.FullBitmapLost)
	s.Pulled(types.NamespacedName{Namespace: "ns", Name: "b"}, "uid", Pull{Serving: true})
	s.Pulled(types.NamespacedName{Namespace: "ns", Name: "b"}, "uid", Pull{Serving: true, Connected: true, ReadBytes: 2, Sessions: 4, ScratchUsed: 5, ScratchFree: 6})
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
		"varve_handler_info": 1, "varve_handler_guests": 2, "varve_handler_utility_mounts": 1,
		"varve_handler_backup_copy_seconds": 1, "varve_handler_discarded_disks_total": 1,
		"varve_pull_read_bytes_total": 2, "varve_pull_tunnel_reconnects_total": 3, "varve_pull_tunnel_connected": 1,
		"varve_pull_scratch_used_bytes": 5, "varve_pull_scratch_free_bytes": 6,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if _, err := New(registry, "node-1"); err == nil {
		t.Error("a second set on one registry was taken")
	}
}
