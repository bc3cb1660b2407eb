package metric_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/store/metric"
)

// series returns what a collector reports, as "name{label=value,…} value", but for its version.
func series(t *testing.T, c prometheus.Collector) (all []string) {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(c); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			if name := strings.TrimPrefix(f.GetName(), "varve_store_"); name != "info" {
				value := m.GetGauge().GetValue() + m.GetCounter().GetValue()
				all = append(all, fmt.Sprintf("%s{%s} %v", name, strings.Join(labels, ","), value))
			}
		}
	}
	slices.Sort(all)
	return all
}

func TestSet(t *testing.T) {
	t.Parallel()
	s := metric.New("n", func() int { return 2 })
	s.Failed(metric.OperationCopy)
	failures := []string{
		"errors_total{node=n,operation=copy} 1", "errors_total{node=n,operation=look} 0",
		"errors_total{node=n,operation=volume} 0",
	}
	if diff := cmp.Diff(failures, series(t, s)); diff != "" {
		t.Errorf("before the first report: %s", diff)
	}
	s.Looked([]metric.Disk{
		{
			Name: "fast", Reason: "DiskReady", Known: true, Ready: true, Capacity: 100, Available: 70, Provisioned: 300,
			Reserved: 10, Volumes: 5, Scrubbed: true, BadPieces: 3, RepairedPieces: 2,
			Images: []metric.Image{{Name: "debian", Damaged: true}, {Name: "fedora", LastRead: time.Unix(900, 0)}},
		},
		{Name: "hung", Reason: "DiskSilent", Reserved: 20},
	}, []longhornv1.BackingImageV2CopyInfo{
		{Name: "debian", DiskUUID: "u", State: longhornv1.StateInProgress, Progress: 25},
		{Name: "fedora", DiskUUID: "u", State: longhornv1.StateReady, Progress: 100},
		{Name: "arch", DiskUUID: "closed", State: longhornv1.StateInProgress},
	}, map[string]string{"u": "fast"}, time.Unix(1000, 0))
	want := append([]string{
		"copy_progress_ratio{disk=fast,image=debian,node=n} 0.25", "disk_available_bytes{disk=fast,node=n} 70",
		"disk_capacity_bytes{disk=fast,node=n} 100", "disk_provisioned_bytes{disk=fast,node=n} 300",
		"disk_ready{disk=fast,node=n,reason=DiskReady} 1", "disk_ready{disk=hung,node=n,reason=DiskSilent} 0",
		"disk_reserved_bytes{disk=fast,node=n} 10", "disk_reserved_bytes{disk=hung,node=n} 20",
		"image_damaged{disk=fast,image=debian,node=n} 1", "image_damaged{disk=fast,image=fedora,node=n} 0",
		"image_last_scrub_timestamp_seconds{disk=fast,image=fedora,node=n} 900",
		"scrub_bad_pieces_total{disk=fast,node=n} 3", "scrub_repaired_pieces_total{disk=fast,node=n} 2",
		"last_report_timestamp_seconds{node=n} 1000", "volumes{node=n,state=attached} 2",
		"volumes{node=n,state=detached} 3",
	}, failures...)
	slices.Sort(want)
	if diff := cmp.Diff(want, series(t, s)); diff != "" {
		t.Error(diff)
	}
}
