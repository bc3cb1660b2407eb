//go:build !controlplane && !root

package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/diskset"
	"github.com/varvebackup/varve/internal/store/metric"
	"github.com/varvebackup/varve/internal/store/names"
	"github.com/varvebackup/varve/internal/store/reflink"
)

// fakeDisk has a copy of an image, and may hang.
type fakeDisk struct {
	disk.Disk

	mu   sync.Mutex
	hang chan struct{} // nil: it answers
	// waiting is how many calls wait for hang.
	waiting, opened int
}

func (f *fakeDisk) awaitAnswer() {
	f.mu.Lock()
	hang := f.hang
	f.waiting++
	f.mu.Unlock()
	if hang != nil {
		<-hang
	}
	f.mu.Lock()
	f.waiting--
	f.mu.Unlock()
}

func (f *fakeDisk) List(context.Context) ([]disk.Object, error) {
	f.awaitAnswer()
	return []disk.Object{{
		Name: names.Image("debian", "u"), UID: "u", Kind: disk.KindImage, Bytes: 1, State: disk.StateReady, Checksum: "c",
	}}, nil
}

func (f *fakeDisk) Usage(context.Context) (disk.Usage, error) {
	f.awaitAnswer()
	return disk.Usage{Capacity: 100, Available: 50}, nil
}

func (f *fakeDisk) Changed(context.Context, disk.Name, disk.Name) iter.Seq2[extent.Extent, error] {
	return func(yield func(extent.Extent, error) bool) { yield(extent.Extent{Length: 1}, nil) }
}

func (f *fakeDisk) Pieces(context.Context, disk.Name) ([]disk.PieceHash, error) {
	return []disk.PieceHash{{}}, nil
}

func (f *fakeDisk) CloseUnused() error  { return nil }
func (f *fakeDisk) Close() error        { return nil }
func (f *fakeDisk) Recovered() []string { return nil }

// setHang makes the disk hang, or answer again, and returns how many calls waited.
func (f *fakeDisk) setHang(hang bool) (waited int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	waited = f.waiting
	if f.hang != nil {
		close(f.hang)
	}
	f.hang = nil
	if hang {
		f.hang = make(chan struct{})
	}
	return waited
}

// hangWorld is an agent with the disks "good" and "bad", which both have a copy of an image.
type hangWorld struct {
	*testing.T
	agent  *agent
	client client.Client
	disks  map[string]*fakeDisk
}

func newHangWorld(t *testing.T) *hangWorld {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(longhornv1.AddToScheme(scheme), corev1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	w := &hangWorld{T: t, disks: map[string]*fakeDisk{}}
	node := &longhornv1.Node{ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: "node"}}
	node.Spec.Disks = map[string]longhornv1.DiskSpec{}
	image := &longhornv1.BackingImage{ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: "debian"}}
	image.Status.UUID = "u"
	image.Spec.DiskFileSpecMap = map[string]*longhornv1.BackingImageDiskFileSpec{"good": nil, "bad": nil}
	for _, name := range []string{"good", "bad"} {
		dir := t.TempDir()
		if err := reflink.Format(dir, disk.UID(name)); err != nil {
			t.Fatal(err)
		}
		node.Spec.Disks[name] = longhornv1.DiskSpec{Path: dir}
		w.disks[dir] = &fakeDisk{}
		w.disks[name] = w.disks[dir]
	}
	w.client = fake.NewClientBuilder().WithScheme(scheme).WithObjects(node, image).
		WithStatusSubresource(&longhornv1.Node{}, &longhornv1.InstanceManager{}, &longhornv1.BackingImage{}).Build()
	w.agent = newAgent(Options{
		Node: "node", Namespace: "varve", Disks: &diskset.Set{}, PodIP: "10.0.0.1", Clock: clock.RealClock{},
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), Measures: metric.New("node", func() int { return 0 }),
	}, w.client, w.client)
	w.agent.openFiles = func(_ context.Context, dir string) (diskFiles, error) {
		d := w.disks[filepath.Clean(dir)]
		d.awaitAnswer()
		d.opened++
		return d, nil
	}
	return w
}

// look has the agent look at everything once, and returns how long that took.
func (w *hangWorld) look() time.Duration {
	w.Helper()
	begin := time.Now()
	if _, err := w.agent.lookAtAll(w.Context()); err != nil {
		w.Fatal(err)
	}
	return time.Since(begin)
}

// expect checks the reasons of the disks' conditions, and which copies are reported.
func (w *hangWorld) expect(what, good, bad string, copies ...string) (message string) {
	w.Helper()
	var node longhornv1.Node
	var manager longhornv1.InstanceManager
	key := client.ObjectKey{Namespace: "varve", Name: "node"}
	if err := w.client.Get(w.Context(), key, &node); err != nil {
		w.Fatal(err)
	}
	if err := w.client.Get(w.Context(), key, &manager); err != nil {
		w.Fatal(err)
	}
	for name, want := range map[string]string{"good": good, "bad": bad} {
		c := node.Status.DiskStatus[name].Conditions[0]
		if c.Reason != want || (c.Status == metav1.ConditionTrue) != (want == longhornv1.ReasonDiskReady) {
			w.Errorf("%s: %s: %+v, want %s", what, name, c, want)
		}
		if name == "bad" {
			message = c.Message
		}
	}
	if len(manager.Status.BackingImages) != len(copies) {
		w.Errorf("%s: %+v", what, manager.Status.BackingImages)
	}
	for _, on := range copies {
		if c := manager.Status.BackingImages[on+"/u"]; c.State != longhornv1.StateReady {
			w.Errorf("%s: the copy on %s: %+v", what, on, c)
		}
	}
	if age := time.Since(manager.Status.HeartbeatTime.Time); age > heartbeatInterval {
		w.Errorf("%s: the heartbeat is %s old", what, age)
	}
	return message
}

// expectMeasured checks what the metrics say of disks: each text, and in place of "" that the bad disk has no size.
func (w *hangWorld) expectMeasured(what string, texts ...string) {
	w.Helper()
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(w.agent.Measures); err != nil {
		w.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		w.Fatal(err)
	}
	found := map[string]bool{"": true}
	for _, f := range families {
		name := strings.TrimPrefix(f.GetName(), "varve_store_")
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "disk" {
					found[fmt.Sprintf("%s %s %v", l.GetValue(), name, m.GetGauge().GetValue())] = true
				}
			}
		}
	}
	for _, text := range texts {
		if !found[text] || text == "" && found["bad disk_available_bytes 50"] {
			w.Errorf("%s: no %q in %v", what, text, found)
		}
	}
}

const (
	diskIsReady  = longhornv1.ReasonDiskReady
	diskIsSilent = longhornv1.ReasonDiskSilent
)

// A disk that hangs is reported, and holds up neither the other one nor the heartbeat. It costs one goroutine.
func TestAgent_goesOnWithoutADiskThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newHangWorld(t)
		ready := 0
		w.agent.CopyReady = func() {
			w.expect("when a copy has got ready", diskIsReady, diskIsReady, "good", "bad")
			ready++
		}
		w.look()
		w.expect("at first", diskIsReady, diskIsReady, "good", "bad")
		w.look()
		if ready != 1 {
			t.Errorf("it was told %d times that a copy had got ready", ready)
		}

		bad := w.disks["bad"]
		bad.setHang(true)
		if took := w.look(); took != diskAnswers {
			t.Errorf("it waits %s for the disk", took)
		}
		w.expect("while it is slow", diskIsReady, diskIsReady, "good", "bad")
		w.expectMeasured("while it is slow", "bad disk_available_bytes 50", "bad disk_ready 1", "good disk_ready 1")
		for range 10 { // heartbeats
			if took := w.look(); took > diskAnswers {
				t.Errorf("it waits %s for the disk", took)
			}
			time.Sleep(heartbeatInterval)
		}
		if took := w.look(); took != 0 {
			t.Errorf("it waits %s for a disk that is silent", took)
		}
		message := w.expect("while it hangs", diskIsReady, diskIsSilent, "good")
		w.expectMeasured("while it hangs", "", "bad disk_ready 0", "good disk_ready 1")
		if !strings.Contains(message, "the disk has not answered since ") {
			t.Errorf("%q", message)
		}
		if d, err := w.agent.Disks.Find("bad"); err != nil {
			t.Errorf("volumes that are attached need the disk: %v", err)
		} else if _, err := d.List(t.Context()); err == nil {
			t.Error("others wait for the disk")
		}
		if waited := bad.setHang(false); waited != 1 {
			t.Errorf("%d calls wait for the disk", waited)
		}
		synctest.Wait()
		select {
		case <-w.agent.wake:
		default:
			t.Error("nobody looks when it answers")
		}
		w.look()
		w.expect("when it answers again", diskIsReady, diskIsReady, "good", "bad")
		if bad.opened != 1 {
			t.Errorf("it was opened %d times", bad.opened)
		}
		w.agent.closeAll()
	})
}

// A disk that hangs when it is to be opened is opened when it answers, once.
func TestAgent_opensADiskThatHungLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newHangWorld(t)
		bad := w.disks["bad"]
		bad.setHang(true)
		w.look()
		w.expect("while it is slow", diskIsReady, diskIsSilent, "good")
		time.Sleep(time.Minute)
		w.look()
		time.Sleep(time.Minute)
		w.look()
		w.expect("while it hangs", diskIsReady, diskIsSilent, "good")
		bad.setHang(false)
		synctest.Wait()
		w.look()
		w.expect("when it answers", diskIsReady, diskIsReady, "good", "bad")
		if bad.opened != 1 {
			t.Errorf("it was opened %d times", bad.opened)
		}
		w.agent.closeAll()
	})
}

// Jobs on a disk that hangs do not take the places of those on others, and are not waited for.
func TestAgent_jobsOfADiskThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newHangWorld(t)
		w.look()
		bad := w.disks["bad"]
		bad.setHang(true)
		free := make(chan struct{})
		stuck := func(context.Context, *job) error {
			<-free
			return nil
		}
		for _, image := range []string{"1", "2"} {
			if !w.agent.startJob(t.Context(), w.agent.stateOf(copyKey{"bad", image}), actionSync, stuck) {
				t.Fatal("no place for a job")
			}
		}
		other := w.agent.stateOf(copyKey{"good", "3"})
		if w.agent.startJob(t.Context(), other, actionSync, stuck) {
			t.Error("there are more places than there should be")
		}
		w.look()
		time.Sleep(time.Minute)
		w.look()
		if !w.agent.startJob(t.Context(), other, actionSync, stuck) {
			t.Error("jobs on the disk that hangs take all places")
		}
		if err := w.agent.closeDisk(t.Context(), w.agent.disks["bad"]); err == nil {
			t.Error("a disk is closed with a job on it")
		}
		bad.setHang(false)
		close(free)
		synctest.Wait()
		w.agent.closeAll()
	})
}
