package main

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/bench/report"
	"github.com/varvebackup/varve/internal/datamove"
)

func TestParseOptions(t *testing.T) {
	t.Parallel()
	o, err := parseOptions([]string{"-only", "move-peak", "-rounds", "1"})
	if err != nil || !o.wants("move-peak") || o.wants("move-full") {
		t.Errorf("%+v, %v", o, err)
	}
	for _, args := range [][]string{{"-only", "move-nothing"}, {"-rounds", "0"}, {"more"}} {
		if _, err := parseOptions(args); err == nil {
			t.Errorf("%v is accepted", args)
		}
	}
}

// A course keeps the first moment of each phase and of the report.
func TestCourse_keepsWhatItSawFirst(t *testing.T) {
	t.Parallel()
	c := &course{created: time.Now(), phases: map[velerov2.Phase]time.Time{}}
	o := &velerov2.DataUpload{}
	see := func(phase velerov2.Phase) (bool, error) {
		o.Status.Phase = phase
		return c.record(o)
	}
	for _, phase := range []velerov2.Phase{"", velerov2.PhaseAccepted, velerov2.PhaseInProgress} {
		if ended, err := see(phase); ended || err != nil {
			t.Fatalf("in %q: %v, %v", phase, ended, err)
		}
	}
	began := c.phases[velerov2.PhaseInProgress]
	metav1.SetMetaDataAnnotation(&o.ObjectMeta, datamove.AnnotationReport, "{}")
	if _, err := see(velerov2.PhaseInProgress); err != nil || c.phases[velerov2.PhaseInProgress] != began || c.reported.IsZero() {
		t.Errorf("%v, %+v", err, c)
	}
	if ended, err := see(velerov2.PhaseCompleted); !ended || err != nil || c.seconds() < c.dataSeconds() {
		t.Errorf("%v, %v, %s", ended, err, c)
	}
	o.Status.Message = "it broke"
	if ended, err := see(velerov2.PhaseFailed); !ended || err == nil {
		t.Errorf("a failure: %v, %v", ended, err)
	}
}

func TestFigures(t *testing.T) {
	t.Parallel()
	f := figures{}
	for _, seconds := range []float64{1, 3, 2} {
		used := &usage{processors: map[string]time.Duration{moverProcess: time.Duration(seconds * float64(time.Second)), s3Process: time.Second}, moverBytes: 100 * mib}
		f.add("id", seconds, 8, used, &usage{processors: map[string]time.Duration{kopiaProcess: 10 * time.Second}})
	}
	want := report.Row{
		ID: "id", What: "what", Value: 2, Unit: "s", Peer: "peer", PeerValue: 8, Ratio: 4, Min: 1, Max: 3,
		Cost: &report.Cost{CPUSeconds: 3, MemoryMiB: 100}, PeerCost: &report.Cost{CPUSeconds: 10},
		Processors: map[string]float64{moverProcess: 1, s3Process: 0.5}, PeerProcessors: map[string]float64{kopiaProcess: 5},
	}
	if d := cmp.Diff(want, f.row("id", "what", "s", "peer", 2*gib)); d != "" {
		t.Error(d)
	}
}
