package moverpod

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/test/verdict"
)

// newDevice returns the path of a disk with some data.
func newDevice(t *testing.T, size int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "device")
	writeSparse(t, path, size, map[int64][]byte{0: noise(int(size/2), 1)})
	return path
}

// start runs the pod until ended gives its error.
func (p *pod) start(ctx context.Context) (ended <-chan error) {
	done := make(chan error, 1)
	go func() { done <- Run(ctx, p.Options) }()
	return done
}

func TestRun_waitsForItsObject(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.newPod(t, newUpload(corev1.PersistentVolumeBlock), newDevice(t, mib))
	p.api.setPhase(velerov2.PhasePrepared)
	ended := p.start(t.Context())
	select {
	case err := <-ended:
		t.Fatalf("it ended: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	if strings.Contains(p.output.String(), "opening") {
		t.Error("it began before the object was InProgress")
	}
	p.api.setPhase(velerov2.PhaseInProgress)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if report, _ := p.api.report(t); report.Outcome != datamove.Succeeded {
		t.Errorf("%+v", report)
	}
}

func TestRun_waitsForABoundedTime(t *testing.T) {
	t.Parallel()
	p := newSite(t).newPod(t, newUpload(corev1.PersistentVolumeBlock), newDevice(t, mib))
	p.api.setPhase("")
	p.limits.start = 50 * time.Millisecond
	if err := Run(t.Context(), p.Options); err == nil || !strings.Contains(err.Error(), "DataUpload velero/b1-x is not InProgress after 50ms") {
		t.Error(err)
	}
	if last, _ := os.ReadFile(p.Files.Termination); !bytes.Contains(last, []byte("nobody has started it")) {
		t.Errorf("last words %q", last)
	}
}

// An object that needs nothing gets nothing.
func TestRun_leavesOthersObjectsAlone(t *testing.T) { //nolint:tparallel // its subtests are in a group, which it waits for
	t.Parallel()
	s := newSite(t)
	metadata := func(o map[string]any) map[string]any { return o["metadata"].(map[string]any) }
	t.Run("each", func(t *testing.T) { s.leavesAlone(t, metadata) })
	if points := s.points(t); len(points) != 0 {
		t.Errorf("%d restore points", len(points))
	}
}

func (s *site) leavesAlone(t *testing.T, metadata func(map[string]any) map[string]any) {
	t.Helper()
	for name, change := range map[string]func(*fakeAPI){
		"gone":      (*fakeAPI).remove,
		"another":   func(a *fakeAPI) { a.change(func(o map[string]any) { metadata(o)["uid"] = "other" }) },
		"completed": func(a *fakeAPI) { a.setPhase(velerov2.PhaseCompleted) },
		"failed":    func(a *fakeAPI) { a.setPhase(velerov2.PhaseFailed) },
		"canceled":  func(a *fakeAPI) { a.setPhase(velerov2.PhaseCanceled) },
		"reported": func(a *fakeAPI) {
			a.change(func(o map[string]any) {
				metadata(o)["annotations"] = reportBy("pod-0", "pod-0", datamove.Succeeded)
			})
		},
	} {
		for _, when := range []string{"before", "while it waits", "while it works"} {
			t.Run(name+" "+when, func(t *testing.T) {
				t.Parallel()
				p := s.newPod(t, newUpload(corev1.PersistentVolumeBlock), newDevice(t, mib))
				var before []byte
				apply := func() { change(p.api); before, _ = p.api.text() }
				switch when {
				case "before":
					apply()
				case "while it waits":
					p.api.setPhase(velerov2.PhasePrepared)
				case "while it works":
					p.Files.Access += ".fifo"
					makeFIFO(t, p.Files.Access)
					p.limits.grace = 100 * time.Millisecond
				}
				ended := p.start(t.Context())
				switch when {
				case "while it waits":
					waitForText(t, p.output, "mover started")
					time.Sleep(50 * time.Millisecond)
					apply()
				case "while it works":
					held := awaitReader(t, p.Files.Access)
					defer held.Close()
					apply()
				}
				if err := <-ended; err != nil {
					t.Error(err)
				}
				if after, _ := p.api.text(); !bytes.Equal(before, after) || p.api.patchCount() > 0 {
					t.Errorf("it changed %s\nto %s", before, after)
				}
			})
		}
	}
}

func TestCancel_isReportedAtAnyTime(t *testing.T) { //nolint:tparallel // its subtests are in a group, which it waits for
	t.Parallel()
	s := newSite(t)
	t.Run("each", func(t *testing.T) { s.reportsCancel(t) })
	if points := s.points(t); len(points) != 0 {
		t.Errorf("%d restore points", len(points))
	}
}

func (s *site) reportsCancel(t *testing.T) {
	t.Helper()
	for name, cancel := range map[string]func(*fakeAPI){
		"canceled":  (*fakeAPI).cancel,
		"canceling": func(a *fakeAPI) { a.setPhase(velerov2.PhaseCanceling) },
		"deleted": func(a *fakeAPI) {
			a.change(func(o map[string]any) { o["metadata"].(map[string]any)["deletionTimestamp"] = "2026-01-01T00:00:00Z" })
		},
	} {
		t.Run(name+" before", func(t *testing.T) {
			t.Parallel()
			p := s.newPod(t, newUpload(corev1.PersistentVolumeBlock), newDevice(t, mib))
			cancel(p.api)
			p.run(t, datamove.Canceled)
		})
		t.Run(name+" while it waits", func(t *testing.T) {
			t.Parallel()
			p := s.newPod(t, newUpload(corev1.PersistentVolumeBlock), newDevice(t, mib))
			p.api.setPhase(velerov2.PhaseAccepted)
			time.AfterFunc(100*time.Millisecond, func() { cancel(p.api) })
			p.run(t, datamove.Canceled)
		})
		// The first step of the work hangs, and heeds nothing.
		t.Run(name+" while the work hangs", func(t *testing.T) {
			t.Parallel()
			p := s.newPod(t, newUpload(corev1.PersistentVolumeBlock), newDevice(t, mib))
			p.Files.Access += ".fifo"
			makeFIFO(t, p.Files.Access)
			p.limits.grace = 100 * time.Millisecond
			held := make(chan *os.File, 1)
			go func() {
				held <- awaitReader(t, p.Files.Access)
				cancel(p.api)
			}()
			p.run(t, datamove.Canceled)
			if !strings.Contains(p.output.String(), "dies with this process") {
				t.Error("the work did not hang")
			}
			_ = (<-held).Close()
		})
	}
}

// A cancellation in the middle ends the work, and nothing is left of it in the list of restore points.
func TestCancel_whileDataMoves(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.newPod(t, newUpload(corev1.PersistentVolumeBlock), newDevice(t, 512*mib))
	p.Job.Parallel = 1
	var once atomic.Bool
	p.api.setRefuse(func(r *http.Request) int {
		if isPatch(r) && once.CompareAndSwap(false, true) {
			go p.api.cancel()
		}
		return 0
	})
	p.run(t, datamove.Canceled)
	if progress := p.api.progress(); len(progress) == 0 || progress[len(progress)-1].BytesDone == 512*mib {
		t.Errorf("progress %v", progress)
	}
	if points := s.points(t); len(points) != 0 {
		t.Errorf("%d restore points", len(points))
	}
}

// A cancel, a deletion or an interruption comes while the restore point is being published. It is published, so the
// mover reports it: otherwise nobody would know of it, and nobody would delete it.
//
//nolint:paralleltest // the failpoint is that of all sessions
func TestCancel_comesTooLateForAPublishedPoint(t *testing.T) {
	for name, stop := range map[string]func(a *fakeAPI, interrupt func()){
		"canceled": func(a *fakeAPI, _ func()) { a.cancel() },
		"deleted": func(a *fakeAPI, _ func()) {
			a.change(func(o map[string]any) { o["metadata"].(map[string]any)["deletionTimestamp"] = "2026-01-01T00:00:00Z" })
		},
		"interrupted": func(_ *fakeAPI, interrupt func()) { interrupt() },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			p := s.newPod(t, newUpload(corev1.PersistentVolumeBlock), newDevice(t, 8*mib))
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			var once atomic.Bool
			engine.Failpoint = func(step string) {
				if step == "restore point put" && once.CompareAndSwap(false, true) {
					stop(p.api, interrupt)
					waitForText(t, p.output, "msg=stopping")
				}
			}
			err := <-p.start(ctx)
			engine.Failpoint = nil
			if err != nil {
				t.Fatal(err)
			}
			report, _ := p.api.report(t)
			points := s.points(t)
			if len(points) != 1 || report.Outcome != datamove.Succeeded ||
				!strings.Contains(report.SnapshotID, points[0].ID) {
				verdict.Errorf(t, "%d restore points, and the report is %+v", len(points), report)
			}
		})
	}
}

// Upstream's defect 9: the total of a disk was 0 while it was read, so nobody knew how far it was.
func TestProgress_hasTheTotalWhileDataMoves(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.newPod(t, newUpload(corev1.PersistentVolumeBlock), newDevice(t, 512*mib))
	p.Job.Parallel = 1
	var once atomic.Bool
	p.api.setRefuse(func(r *http.Request) int {
		if isPatch(r) && once.CompareAndSwap(false, true) {
			go p.api.cancel() // what follows is not needed
		}
		return 0
	})
	p.run(t, datamove.Canceled)
	all := p.api.progress()
	if len(all) == 0 || all[0].TotalBytes != 512*mib || all[0].BytesDone >= 512*mib {
		t.Errorf("progress %v", all)
	}
}

func TestInterruption_isNoOutcome(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.newPod(t, newUpload(corev1.PersistentVolumeBlock), newDevice(t, 256*mib))
	ctx, cancel := context.WithCancel(t.Context())
	p.Job.Parallel = 1
	p.api.setRefuse(func(r *http.Request) int {
		if isPatch(r) {
			cancel()
		}
		return 0
	})
	if err := <-p.start(ctx); err == nil || !strings.Contains(err.Error(), "interrupted") {
		t.Error(err)
	}
	if report, ok := p.api.report(t); ok {
		t.Errorf("%+v", report)
	}
	p.api.setRefuse(nil)
	p.run(t, datamove.Succeeded)
	cancel()
}

// Progress is true, only grows, is not written too often, and not at all when it is the same.
func TestProgress_isTrue(t *testing.T) {
	t.Parallel()
	s, device := newSite(t), newDevice(t, 128*mib)
	p := s.newPod(t, newUpload(corev1.PersistentVolumeBlock), device)
	p.limits.progress = 50 * time.Millisecond
	began := time.Now()
	report := p.run(t, datamove.Succeeded)
	check := func(all []velerov2.Progress, took time.Duration) {
		t.Helper()
		var before velerov2.Progress
		for _, now := range all {
			if now.TotalBytes != 128*mib || now.BytesDone < before.BytesDone || now == before {
				t.Errorf("progress %v", all)
			}
			before = now
		}
		if before.BytesDone != 128*mib || len(all) > int(took/p.limits.progress)+2 {
			t.Errorf("progress in %s: %v", took, all)
		}
	}
	check(p.api.progress(), time.Since(began))

	down := s.newPod(t, newDownload(corev1.PersistentVolumeBlock, report.SnapshotID), newDevice(t, 128*mib))
	down.limits.progress = p.limits.progress
	// An earlier pod was further than this one is at the beginning.
	down.api.change(func(o map[string]any) {
		o["status"].(map[string]any)["progress"] = map[string]any{"totalBytes": 128 * mib, "bytesDone": 100 * mib}
	})
	began = time.Now()
	down.run(t, datamove.Succeeded)
	all := down.api.progress()
	check(all, time.Since(began))
	if all[0].BytesDone < 100*mib {
		t.Errorf("it went back to %v", all[0])
	}
}

// Somebody else changes the object between reading and reporting.
func TestReport_survivesConflicts(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	changes := func(p *pod, change func()) {
		var left atomic.Int64
		left.Store(3)
		p.api.setRefuse(func(r *http.Request) int {
			if !isPatch(r) {
				return 0
			}
			body, _ := io.ReadAll(r.Body)
			r.Body = io.NopCloser(bytes.NewReader(body))
			if isReport(string(body)) && left.Add(-1) >= 0 {
				change()
			}
			return 0
		})
	}
	p := s.newPod(t, newUpload(corev1.PersistentVolumeBlock), newDevice(t, mib))
	changes(p, func() {
		p.api.change(func(o map[string]any) { o["status"].(map[string]any)["message"] = time.Now().String() })
	})
	p.run(t, datamove.Succeeded)

	// The pod was given up, and its successor has reported.
	p = s.newPod(t, newUpload(corev1.PersistentVolumeBlock), newDevice(t, mib))
	other := reportBy("pod-2", "pod-2", datamove.Canceled)
	changes(p, func() {
		p.api.change(func(o map[string]any) {
			o["metadata"].(map[string]any)["annotations"] = other
		})
	})
	if err := Run(t.Context(), p.Options); err != nil {
		t.Fatal(err)
	}
	if report, _ := p.api.report(t); report.Encode() != other[datamove.AnnotationReport] {
		t.Errorf("%+v", report)
	}
}

// reportBy returns the annotations of an object with the report of a pod, on which the driver counts on another one,
// or the same.
func reportBy(pod, counted types.UID, outcome datamove.Outcome) map[string]any {
	return map[string]any{
		datamove.AnnotationReport: datamove.Report{Outcome: outcome, Pod: pod}.Encode(), datamove.AnnotationDriver: `{"version":1,"pod":"` + string(counted) + `"}`,
	}
}

// A pod that was given up, on a node that was cut off, has reported after all. Its successor does the work, and its report counts.
func TestReport_ofAPodThatWasGivenUpStopsNobody(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, counted := range []types.UID{"", "pod-1"} { // The driver may not know of the successor yet.
		for _, when := range []string{"before", "while it works"} {
			p := s.newPod(t, newUpload(corev1.PersistentVolumeBlock), newDevice(t, mib))
			report := func() {
				p.api.change(func(o map[string]any) {
					o["metadata"].(map[string]any)["annotations"] = reportBy("pod-0", counted, datamove.Succeeded)
				})
			}
			if when == "before" {
				report()
			} else {
				p.api.setRefuse(func(r *http.Request) int {
					if isPatch(r) && report != nil {
						report()
						report = nil
					}
					return 0
				})
			}
			p.run(t, datamove.Succeeded)
		}
	}
}

func TestReport_waitsForTheAPIServer(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.newPod(t, newUpload(corev1.PersistentVolumeBlock), newDevice(t, mib))
	var refused atomic.Int64
	p.api.setRefuse(func(r *http.Request) int {
		if strings.Contains(p.output.String(), "stored") && refused.Add(1) < 20 {
			return http.StatusServiceUnavailable
		}
		return 0
	})
	p.run(t, datamove.Succeeded)
	if refused.Load() < 20 {
		t.Error("nothing was refused")
	}

	p = s.newPod(t, newUpload(corev1.PersistentVolumeBlock), newDevice(t, mib))
	p.limits.report = 300 * time.Millisecond
	p.api.setRefuse(func(r *http.Request) int {
		switch {
		case strings.Contains(p.output.String(), "the report was not written"):
			<-r.Context().Done() // time is up in the middle of a try, which is not why
		case isPatch(r):
			return http.StatusForbidden
		}
		return 0
	})
	if err := Run(t.Context(), p.Options); err == nil || !strings.Contains(err.Error(), "has ended as Succeeded, and cannot be reported: patch ") {
		t.Error(err)
	}
}

func waitForText(t *testing.T, o *output, text string) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !strings.Contains(o.String(), text); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it did not say %q:\n%s", text, o)
		}
	}
}
