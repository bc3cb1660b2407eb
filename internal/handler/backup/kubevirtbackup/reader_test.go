package kubevirtbackup

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/internal/handler/metric"
	"github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/test/gen"
)

// A pass counts what its launcher reports, and the series of a backup end with it, however it goes.
func TestMeasurePull_followsTheBackup(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	if err := backupv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	measures, err := metric.New(registry, "node-1")
	if err != nil {
		t.Fatal(err)
	}
	backup := gen.Backup(gen.Meta("ns", "monday"), func(b *backupv1.VirtualMachineBackup) {
		b.UID, b.Spec.Mode = "uid", "Pull"
		b.Status = backupv1.VirtualMachineBackupStatus{SourceName: "web", NodeName: "node-1", Phase: backupv1.BackupCopied}
	})
	r := &Reconciler{NodeName: "node-1", Measures: measures, Cached: fake.NewClientBuilder().WithScheme(scheme).WithObjects(backup).Build()}
	report := func(b *backupv1.VirtualMachineBackup, job *launcherpb.Backup) {
		job.Uid = string(backup.UID)
		r.measurePull(&gathered{backup: b, state: &launcherpb.State{Backup: job}})
	}
	want := func(what string, series map[string]float64) {
		t.Helper()
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, f := range families {
			if name := f.GetName(); len(name) > 10 && name[:10] == "varve_pull" {
				got[name[11:]] = f.GetMetric()[0].GetCounter().GetValue() + f.GetMetric()[0].GetGauge().GetValue()
			}
		}
		if diff := cmp.Diff(series, got); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
	}
	serving := &launcherpb.Backup{Phase: launcherpb.Backup_SERVING, ScratchUsedBytes: 5, ScratchFreeBytes: 6}
	report(backup, serving)
	serving.ProcessedBytes, serving.Tunnel = 100, &launcherpb.Tunnel{Sessions: 3, Connected: true}
	report(backup, serving)
	want("serving", map[string]float64{"read_bytes_total": 100, "tunnel_reconnects_total": 2, "tunnel_connected": 1, "scratch_used_bytes": 5, "scratch_free_bytes": 6})
	if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(backup)}); err != nil {
		t.Fatal(err)
	}
	counted := map[string]float64{"read_bytes_total": 100, "tunnel_reconnects_total": 2}
	want("copied", counted)
	report(backup, serving)
	if err := r.Cached.Delete(t.Context(), backup); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(backup)}); err != nil {
		t.Fatal(err)
	}
	want("gone", counted)
	pushed := backup.DeepCopy()
	pushed.Spec.Mode = backupv1.PushMode
	report(pushed, serving)
	want("a push backup", counted)
}

// A launcher with an error is told again after a while, of each far end; one that is connected is not.
func TestConnected_isToldAgainAfterAnError(t *testing.T) {
	t.Parallel()
	now := clocktesting.NewFakePassiveClock(time.Unix(1, 0))
	r := &Reconciler{Clock: now}
	b := &backupv1.VirtualMachineBackup{}
	b.UID = "uid"
	b.Spec.Mode, b.Spec.PulledBy = backupv1.PullMode, backupv1.PulledByDataUploads
	b.Status.IncludedVolumes = []backupv1.IncludedVolume{{Name: "root"}, {Name: "data"}}
	root := backupv1.VolumeTunnel{Volume: "root", PullTunnel: backupv1.PullTunnel{Address: "a:1"}}
	b.Status.PullTunnels = []backupv1.VolumeTunnel{root, {Volume: "other", PullTunnel: root.PullTunnel}}
	if diff := cmp.Diff([]backupv1.VolumeTunnel{root}, farEndsOf(b)); diff != "" {
		t.Error(diff)
	}
	job := &launcherpb.Backup{Uid: "uid", Tunnel: &launcherpb.Tunnel{}}
	s := &gathered{backup: b, state: &launcherpb.State{Backup: job}}
	connected := func(what string, want bool) {
		t.Helper()
		if got := r.isConnected(s, root); got != want {
			t.Errorf("%s: %v", what, got)
		}
	}
	connected("never told", false)
	r.assumeTold(b)
	connected("told by another handler", false)
	if got := r.toldInVain(b.UID, farEndsOf(b)); len(got) != 1 || got[0] != "data" {
		t.Errorf("told in vain: %v", got)
	}
	r.connected[b.UID]["root"] = farEnd{root.PullTunnel, now.Now()}
	connected("told", true)
	job.Tunnel.Error = "volume data: refused"
	connected("just told", true)
	now.SetTime(now.Now().Add(tellAgain))
	connected("an error after a while", false)
	job.Tunnel.Error = ""
	connected("no error", true)
	root.Address = "b:1"
	connected("another address", false)
	r.forgetBackup(b.UID)
	if len(r.connected) > 0 {
		t.Errorf("remembered: %v", r.connected)
	}
}

// No alert tells of a launcher that nobody calls as long as no mover pod is there.
func TestHasReaders(t *testing.T) {
	t.Parallel()
	tunnels := []backupv1.VolumeTunnel{{Volume: "root"}}
	for name, c := range map[string]struct {
		by        backupv1.PullReader
		tunnels   []backupv1.VolumeTunnel
		connected bool
		want      bool
	}{
		"a client, connected":        {"", nil, true, true},
		"a client, not connected":    {"", nil, false, false},
		"no mover pod":               {backupv1.PulledByDataUploads, nil, false, true},
		"a mover pod, not connected": {backupv1.PulledByDataUploads, tunnels, false, false},
		"mover pods, all connected":  {backupv1.PulledByDataUploads, tunnels, true, true},
	} {
		b := &backupv1.VirtualMachineBackup{}
		b.Spec.Mode, b.Spec.PulledBy, b.Status.PullTunnels = backupv1.PullMode, c.by, c.tunnels
		if got := hasReaders(b, &launcherpb.Tunnel{Connected: c.connected}); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
