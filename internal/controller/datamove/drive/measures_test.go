//go:build controlplane

package drive

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/test/controlplane"
)

// measured returns the samples of the metrics of data movements, by name and labels without what all of them have. Of a histogram, it is
// how many times something was observed.
func (w *world) measured() map[string]float64 {
	w.t.Helper()
	families, err := w.registry.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	samples := map[string]float64{}
	for _, f := range families {
		name, ours := strings.CutPrefix(f.GetName(), "varve_data_")
		if !ours {
			continue
		}
		for _, m := range f.GetMetric() {
			key := name
			for _, l := range m.GetLabel() {
				key += " " + l.GetValue()
			}
			samples[key] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	maps.DeleteFunc(samples, func(_ string, n float64) bool { return n == 0 })
	return samples
}

// untilMeasured waits until exactly these samples are not zero.
func (w *world) untilMeasured(want map[string]float64) {
	w.t.Helper()
	var diff string
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if diff = cmp.Diff(want, w.measured()); diff == "" {
			return
		}
	}
	w.t.Error(diff)
}

func TestMetrics_countWhatEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.target()
	w.report = func(o client.Object) *datamove.Report {
		switch o.GetName() {
		case "canceled":
			return nil
		case "failed":
			return &datamove.Report{Outcome: datamove.Failed, Message: "no space"}
		case "lies":
			return &datamove.Report{Outcome: datamove.Succeeded, SnapshotID: pointOf(o), TotalBytes: -1, ReadBytes: -2, IncrementalBytes: -3, StoredBytes: -4}
		default:
			return &datamove.Report{Outcome: datamove.Succeeded, SnapshotID: pointOf(o), TotalBytes: 1000, ReadBytes: 300, IncrementalBytes: 200, StoredBytes: 100}
		}
	}
	w.exposer.change(func() { w.exposer.refuses["refused"] = errclass.Errorf(errclass.Invalid, "no snapshot") })
	node := w.node()
	w.driver()
	w.untilPhase(w.upload("b1"), velerov2.PhaseCompleted)
	w.untilPhase(w.upload("lies"), velerov2.PhaseCompleted)
	w.untilPhase(w.download("r1"), velerov2.PhaseCompleted)
	w.untilPhase(w.upload("refused"), velerov2.PhaseFailed)
	w.untilPhase(w.upload("failed"), velerov2.PhaseFailed)
	w.untilPhase(w.upload("unserved", func(o *velerov2.DataUpload) { o.Spec.SnapshotType = "None" }), velerov2.PhaseFailed)
	canceled := w.upload("canceled")
	w.untilPhase(canceled, velerov2.PhaseInProgress)
	want := map[string]float64{
		"movements_total DataUpload Completed": 2, "movements_total DataUpload Failed": 3, "movements_total DataDownload Completed": 1,
		"movement_failures_total DataUpload Refused": 1, "movement_failures_total DataUpload MoverFailed": 1, "movement_failures_total DataUpload Unserved": 1,
		"movement_volume_bytes_total DataUpload": 1000, "movement_volume_bytes_total DataDownload": 1000,
		"upload_read_bytes_total": 300, "upload_changed_bytes_total": 200, "upload_stored_bytes_total": 100,
		"movements_running DataUpload " + node:      1,
		"movement_stage_seconds DataUpload wait":    5, // all but the one that nobody serves
		"movement_stage_seconds DataUpload prepare": 4, "movement_stage_seconds DataUpload move": 2, "movement_stage_seconds DataUpload finish": 2,
		"movement_stage_seconds DataDownload wait": 1, "movement_stage_seconds DataDownload prepare": 1,
		"movement_stage_seconds DataDownload move": 1, "movement_stage_seconds DataDownload finish": 1,
	}
	w.untilMeasured(want)
	w.cancel(canceled)
	w.untilPhase(canceled, velerov2.PhaseCanceled)
	delete(want, "movements_running DataUpload "+node)
	want["movements_total DataUpload Canceled"], want["movement_stage_seconds DataUpload cancel"] = 1, 1
	w.untilMeasured(want)
}

// Who waits is counted although no node has a place.
func TestMetrics_countWhoWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "concurrency: {nodes: [{nodeSelector: {}, perNode: 0}]}")
	w.nodeAndDriver()
	for i := range 3 {
		w.upload(fmt.Sprintf("b%d", i))
	}
	w.download("r1")
	w.untilMeasured(map[string]float64{"movements_waiting DataUpload": 3, "movements_waiting DataDownload": 1})
}

// The driver that writes the end counts it, with the reason that another one has found.
func TestMetrics_countAnEndOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.exposer.change(func() {
		w.exposer.refuses["b1"], w.exposer.stuck["b1"] = errclass.Errorf(errclass.Invalid, "no snapshot"), true
	})
	w.node()
	stop := w.driver()
	o := w.upload("b1")
	w.untilSays(o, "the claim to be gone")
	stop()
	w.driver()
	w.exposer.change(func() { w.exposer.stuck["b1"] = false })
	w.untilPhase(o, velerov2.PhaseFailed)
	w.untilMeasured(map[string]float64{"movements_total DataUpload Failed": 1, "movement_failures_total DataUpload Refused": 1})
}

// Whoever may edit an object makes no series: the annotation has any text.
func TestMetrics_reasonsAreOurs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.exposer.change(func() {
		w.exposer.refuses["b1"], w.exposer.stuck["b1"] = errclass.Errorf(errclass.Invalid, "no snapshot"), true
	})
	w.node()
	stop := w.driver()
	o := w.upload("b1")
	w.untilSays(o, "the claim to be gone")
	stop()
	controlplane.Update(t, w.admin, o, false, func(o *velerov2.DataUpload) {
		o.Annotations[datamove.AnnotationDriver] = strings.Replace(o.Annotations[datamove.AnnotationDriver], string(ReasonRefused), "My own", 1)
	})
	w.driver()
	w.exposer.change(func() { w.exposer.stuck["b1"] = false })
	w.untilPhase(o, velerov2.PhaseFailed)
	w.untilMeasured(map[string]float64{"movements_total DataUpload Failed": 1, "movement_failures_total DataUpload Unknown": 1})
}
