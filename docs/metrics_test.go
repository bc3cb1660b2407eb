package docs_test

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	_ "github.com/varvebackup/varve/internal/controller" // registers the metrics that have no objects behind them
	controllermetric "github.com/varvebackup/varve/internal/controller/metric"
	"github.com/varvebackup/varve/internal/datamove"
	exportmetric "github.com/varvebackup/varve/internal/export/metric"
	"github.com/varvebackup/varve/internal/export/server"
	"github.com/varvebackup/varve/internal/export/tunnel"
	handlermetric "github.com/varvebackup/varve/internal/handler/metric"
	storemetric "github.com/varvebackup/varve/internal/store/metric"
	"github.com/varvebackup/varve/test/gen"
	"github.com/varvebackup/varve/test/verdict"
)

// described is a metric that a component serves.
type described struct{ name, kind, help, labels string }

// ownPrefix begins the names of Varve's own metrics. Its components also serve those of their libraries.
const ownPrefix = "varve_"

// registerer registers collectors and remembers the names of what they describe.
type registerer struct {
	*prometheus.Registry
	names map[string]bool
}

var describedName = regexp.MustCompile(`fqName: "(\w+)"`)

func (r *registerer) Register(c prometheus.Collector) error {
	ch := make(chan *prometheus.Desc, 100)
	c.Describe(ch)
	close(ch)
	for d := range ch {
		r.names[describedName.FindStringSubmatch(d.String())[1]] = true
	}
	return r.Registry.Register(c)
}

// metricsOf returns a component's metrics, and fails the test if Prometheus' linter has anything to say about them, or if
// one is registered that has no sample here.
func metricsOf(t *testing.T, component string) []described {
	t.Helper()
	own := &registerer{Registry: prometheus.NewRegistry(), names: map[string]bool{}}
	gatherers := prometheus.Gatherers{own}
	switch component {
	case "controller":
		reportMachines(t, own)
		gatherers = append(gatherers, metrics.Registry)
	case "handler":
		reportNode(t, own)
	case "store":
		reportStore(t, own)
	case "export":
		gatherers = prometheus.Gatherers{reportExport(t)}
	default:
		t.Fatalf("no component %s", component)
	}
	families, err := gatherers.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var all []described
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), ownPrefix) {
			continue
		}
		delete(own.names, f.GetName())
		problems, err := promlint.NewWithMetricFamilies(append(families[:0:0], f)).Lint()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, "`"+l.GetName()+"`")
		}
		all = append(all, described{f.GetName(), strings.ToLower(f.GetType().String()), f.GetHelp(), strings.Join(labels, ", ")})
	}
	for name := range own.names {
		t.Errorf("%s is registered and has no sample: add one to this test", name)
	}
	return all
}

// reportMachines has the controller's metrics report a machine that has everything that can be reported.
func reportMachines(t *testing.T, r prometheus.Registerer) {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		kubevirtv1.AddToScheme, backupv1.AddToScheme, velerov1.AddToScheme, longhornv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	tracker := gen.Tracker(gen.Meta("ns", "tracker"), "vm")
	tracker.Status.Discarded = []backupv1.DiscardedDisk{{Volume: "disk", Reason: backupv1.FullBitmapLost}}
	now := metav1.NewTime(time.Unix(1_800_000_000, 0))
	at := types.NamespacedName{Namespace: "velero", Name: "default"}
	objects := []client.Object{
		&velerov1.BackupStorageLocation{
			ObjectMeta: metav1.ObjectMeta{Namespace: at.Namespace, Name: at.Name},
			Status:     velerov1.BackupStorageLocationStatus{Phase: velerov1.LocationAvailable, LastValidationTime: &now},
		},
		&velerov1.BackupRepository{
			ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: datamove.RepositoryName("ns", at)},
			Spec: velerov1.BackupRepositorySpec{
				VolumeNamespace: "ns", BackupStorageLocation: at.Name, RepositoryConfig: map[string]string{datamove.ConfigLocationNamespace: at.Namespace},
			},
			Status: velerov1.BackupRepositoryStatus{LastMaintenanceTime: &now},
		},
		&longhornv1.BackingImage{ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: "debian"}},
		&longhornv1.Node{ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: "node"}},
		gen.VirtualMachine(gen.Meta("ns", "vm"), gen.Guest()), gen.VirtualMachineInstance(gen.Meta("ns", "vm"), gen.Guest()), tracker, gen.Backup(gen.Meta("ns", "b")),
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
	leading := make(chan struct{})
	close(leading)
	s := controllermetric.New(c, c, leading)
	s.ServeImages("varve")
	if err := r.Register(s); err != nil {
		t.Fatal(err)
	}
	if err := s.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	s.Movements.Now("DataUpload", 1, map[string]int{"node": 1})
	s.Movements.Ended("DataUpload", "Completed")
	s.Movements.Failed("DataUpload", "TimedOut")
	s.Movements.Moved("DataUpload", controllermetric.MovedBytes{})
	s.Movements.Stage("DataUpload", controllermetric.StageMove, time.Second)
	schedules := controllermetric.NewSchedules()
	if err := r.Register(schedules); err != nil {
		t.Fatal(err)
	}
	schedules.Record(&harvesterv1.ScheduleVMBackup{}, gen.Schedule(gen.Meta("ns", "nightly"), "vm", reportedSchedule(now)))
	s.CountKept(map[controllermetric.KeptSnapshots]int{{Namespace: "ns", Driver: "driver"}: 1})
	s.CountEnd(gen.Backup(gen.Meta("ns", "ended"), gen.SetTracker("tracker"), func(b *backupv1.VirtualMachineBackup) {
		b.Status = backupv1.VirtualMachineBackupStatus{
			Phase: backupv1.BackupDone, Result: backupv1.BackupSucceeded, SourceName: "vm", StartTimestamp: &now, CompletionTimestamp: &now, FrozenMillis: ptr.To(int64(1)),
			IncludedVolumes: []backupv1.IncludedVolume{{Name: "disk", FullReason: backupv1.FullBitmapLost}},
		}
	}))
}

// reportedSchedule gives a schedule a status that has everything that can be reported.
func reportedSchedule(now metav1.Time) func(*harvesterv1.ScheduleVMBackup) {
	return func(o *harvesterv1.ScheduleVMBackup) {
		o.Status = harvesterv1.ScheduleVMBackupStatus{
			LastSuccessfulTime: &now, NextScheduleTime: &now,
			Runs: []harvesterv1.ScheduledRun{{Time: now, Result: harvesterv1.RunFailed}},
		}
	}
}

// reportNode has the handler's metrics report everything that can be reported.
func reportNode(t *testing.T, r prometheus.Registerer) {
	t.Helper()
	s, err := handlermetric.New(r, "node")
	if err != nil {
		t.Fatal(err)
	}
	s.Guests(map[string]int{"RUNNING": 1})
	s.Mounts(1)
	s.Copied(backupv1.Full, time.Second)
	s.Discarded(backupv1.FullBitmapLost)
	s.Pulled(types.NamespacedName{Namespace: "ns", Name: "b"}, "uid", handlermetric.Pull{Machine: "vm", Serving: true, ScratchUsed: 1})
}

// reportStore has the store's metrics report everything that can be reported.
func reportStore(t *testing.T, r prometheus.Registerer) {
	t.Helper()
	s := storemetric.New("node", func() int { return 1 })
	if err := r.Register(s); err != nil {
		t.Fatal(err)
	}
	s.Looked([]storemetric.Disk{{
		Name: "disk", Known: true, Scrubbed: true, Images: []storemetric.Image{{Name: "image", LastRead: time.Unix(1, 0)}},
	}}, []longhornv1.BackingImageV2CopyInfo{
		{Name: "image", DiskUUID: "uuid", State: longhornv1.StateInProgress},
	}, map[string]string{"uuid": "disk"}, time.Unix(1_800_000_000, 0))
}

// reportExport has the metrics of an export server report everything that can be reported. They have a registry of their own.
func reportExport(t *testing.T) prometheus.Gatherer {
	t.Helper()
	s := exportmetric.New("ns", "web")
	of, err := server.New(server.Config{Token: func() ([]byte, error) { return nil, nil }})
	if err != nil {
		t.Fatal(err)
	}
	s.AddServer(of)
	s.AddTunnel(&tunnel.Server{})
	hooks := s.Hooks()
	hooks.Sent("disk", "data", 1)
	hooks.Answered("disk", "data", 200, time.Second)
	hooks.TokenRefused("wrong")
	hooks.Limited()
	return s.Gatherer()
}

// TestMetricsReference keeps the tables of metrics.md equal to what the components register.
func TestMetricsReference(t *testing.T) {
	t.Parallel()
	have, err := os.ReadFile("metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	tables := 0
	want := block.ReplaceAllStringFunc(string(have), func(old string) string {
		m := block.FindStringSubmatch(old)
		tables++
		return fmt.Sprintf("<!-- begin metrics %s -->\n%s<!-- end -->", m[2], metricsTable(metricsOf(t, m[2])))
	})
	if tables != 4 {
		t.Errorf("%d tables", tables)
	}
	if *update {
		if err := os.WriteFile("metrics.md", []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(have), want); diff != "" {
		t.Errorf(verdict.GoldenMark+"docs/metrics.md is out of date, run make generate: %s", diff)
	}
}

func metricsTable(all []described) string {
	slices.SortFunc(all, func(a, b described) int { return strings.Compare(a.name, b.name) })
	text := &strings.Builder{}
	text.WriteString("\n| metric | type | labels | meaning |\n|---|---|---|---|\n")
	for _, m := range all {
		fmt.Fprintf(text, "| `%s` | %s | %s | %s |\n", m.name, m.kind, m.labels, m.help)
	}
	text.WriteString("\n")
	return text.String()
}
