//go:build controlplane || root

package handler_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/handler"
	"github.com/varvebackup/varve/internal/handler/launcherclient"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/controlplane"
	"github.com/varvebackup/varve/test/gen"
)

var (
	cluster *controlplane.Cluster
	serial  atomic.Int64
	// installRoles applies deploy/rbac once.
	installRoles = sync.OnceValue(func() error { return cluster.InstallRoles(context.Background()) })
)

// world is a node of its own with one instance on it. The test plays the controller and the guest.
type world struct {
	t        *testing.T
	client   client.Client // as Varve's controller
	ns, node string
	podsDir  string
	pod      types.UID
	launcher *fakeLauncher
	vmi      *kubevirtv1.VirtualMachineInstance
	rootUID  types.UID // of the claim of the instance's disk
	stop     func()
	// waits is StopWaitsForBackup for the handlers that run starts.
	waits time.Duration
	// traffic, if not nil, counts the API requests of the handlers that run starts.
	traffic *controlplane.Traffic
}

// newWorld makes a node with an instance in phase Scheduled. podsDir is the kubelet's pods directory, or "" for a
// new one.
func newWorld(t *testing.T, podsDir string) *world {
	t.Helper()
	n := serial.Add(1)
	w := &world{
		t: t, client: cluster.Client(t, controlplane.Controller), ns: cluster.Namespace(t),
		node: fmt.Sprintf("node-%d", n), pod: types.UID(fmt.Sprintf("pod-%d", n)), podsDir: podsDir, waits: time.Hour,
	}
	if podsDir == "" {
		dir, err := os.MkdirTemp("", "varve-pods")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		w.podsDir = dir
	}
	w.launcher = newFakeLauncher(t, w.podsDir, w.pod)
	w.rootUID = w.claim("root", "pv-root").UID
	w.vmi = w.instance("vm")
	return w
}

// run starts a handler. stop ends it, as does the end of the test.
func (w *world) run() {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	// The handler works with its own roles and its node's token.
	user := controlplane.HandlerOn(w.node).Restrict()
	if err := installRoles(); err != nil {
		w.t.Fatal(err)
	}
	cfg := cluster.ConfigFor(user)
	if w.traffic != nil {
		w.traffic.Wrap(cfg)
	}
	o := handler.Options{
		Config: cfg, NodeName: w.node, Namespace: controlplane.SystemNamespace,
		KubeletPodsDir: w.podsDir, StopWaitsForBackup: w.waits, Registry: prometheus.NewRegistry(), Logger: logger(),
		Timing: launcherclient.Timing{First: 2 * time.Second, Idle: 5 * time.Second, Retry: 50 * time.Millisecond},
	}
	go func() { done <- handler.Run(ctx, o) }()
	stopped := false
	w.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("handler: %v", err)
		}
	}
	w.t.Cleanup(w.stop)
}

func logger() logr.Logger {
	if os.Getenv("VARVE_TEST_LOG") == "" {
		return logr.Discard()
	}
	return log.Log
}

// restart stops the handler and starts another one.
func (w *world) restart() {
	w.t.Helper()
	w.stop()
	w.run()
}

func (w *world) create(obj client.Object) {
	w.t.Helper()
	if err := w.client.Create(w.t.Context(), obj); err != nil {
		w.t.Fatalf("create %T %s: %v", obj, obj.GetName(), err)
	}
}

func (w *world) claim(name, volume string) *corev1.PersistentVolumeClaim {
	w.t.Helper()
	pvc := gen.Claim(gen.Meta(w.ns, name))
	pvc.Annotations = map[string]string{layout.AnnotationContentGeneration: "7"}
	pvc.Spec.VolumeName = volume
	w.create(pvc)
	return pvc
}

// instance makes a tracked instance with one disk and hands it over to the node, as the controller does.
func (w *world) instance(name string) *kubevirtv1.VirtualMachineInstance {
	w.t.Helper()
	return w.instanceOf(name, w.pod)
}

// instanceOf makes such an instance with another launcher pod.
func (w *world) instanceOf(name string, pod types.UID) *kubevirtv1.VirtualMachineInstance {
	w.t.Helper()
	vmi := gen.VirtualMachineInstance(gen.Meta(w.ns, name), gen.Guest(gen.Disk("root", "root")))
	vmi.Finalizers = []string{layout.FinalizerInstance}
	vmi.Labels = map[string]string{layout.LabelNodeName: w.node}
	vmi.Annotations = map[string]string{layout.AnnotationTracking: "true"}
	vmi.Spec.TerminationGracePeriodSeconds = ptr.To(int64(42))
	w.create(vmi)
	controlplane.Update(w.t, w.client, vmi, true, func(v *kubevirtv1.VirtualMachineInstance) {
		v.Status.Phase, v.Status.NodeName = kubevirtv1.PhaseScheduled, w.node
		v.Status.ActivePods = map[types.UID]string{pod: w.node}
	})
	return vmi
}

// guestRuns plays a guest that has come up. As with a real launcher, the first state that says RUNNING has no
// disks: libvirt is asked for them afterwards.
func (w *world) guestRuns() {
	w.t.Helper()
	w.launcher.set(func(s *pb.State) { s.Phase = pb.State_RUNNING })
	w.untilInstance(func(s *kubevirtv1.VirtualMachineInstanceStatus) error {
		return want(s.Phase == kubevirtv1.PhaseRunning, "phase %s", s.Phase)
	})
	w.launcher.set(func(s *pb.State) {
		s.AgentConnected = true
		s.Disks = []*pb.Disk{{Volume: "root", Target: "vda", VirtualBytes: 1 << 30, Tracked: true, OverlayRenewed: w.launcher.renewed}}
		s.Interfaces = []*pb.Interface{{Name: "default", Mac: "02:00:00:00:00:01", GuestName: "eth0", Ips: []string{"10.0.2.2"}, FromAgent: true}}
		s.GuestOs = &pb.GuestOS{Id: "debian", PrettyName: "Debian GNU/Linux"}
	})
}

// started runs a handler until the guest is Running.
func (w *world) started() {
	w.t.Helper()
	w.run()
	w.until(func() error { return want(w.launcher.count("Start") > 0, "the guest was not started") })
	w.guestRuns()
	w.untilInstance(func(s *kubevirtv1.VirtualMachineInstanceStatus) error {
		return want(s.Phase == kubevirtv1.PhaseRunning && s.ChangedBlockTracking != nil && s.ChangedBlockTracking.State == kubevirtv1.ChangedBlockTrackingEnabled,
			"phase %s, tracking %+v", s.Phase, s.ChangedBlockTracking)
	})
}

func want(ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf(format, args...)
}

func (w *world) until(check func() error) {
	w.t.Helper()
	controlplane.Eventually(w.t, check)
}

func (w *world) untilInstance(check func(*kubevirtv1.VirtualMachineInstanceStatus) error) {
	w.t.Helper()
	w.until(func() error {
		if err := w.client.Get(w.t.Context(), client.ObjectKeyFromObject(w.vmi), w.vmi); err != nil {
			return err
		}
		return check(&w.vmi.Status)
	})
}

func (w *world) untilBackup(b *backupv1.VirtualMachineBackup, check func(*backupv1.VirtualMachineBackupStatus) error) {
	w.t.Helper()
	w.until(func() error {
		if err := w.client.Get(w.t.Context(), client.ObjectKeyFromObject(b), b); err != nil {
			return err
		}
		return check(&b.Status)
	})
}

// untilPhase waits for a backup's phase.
func (w *world) untilPhase(b *backupv1.VirtualMachineBackup, phase backupv1.BackupPhase) {
	w.t.Helper()
	w.untilBackup(b, func(s *backupv1.VirtualMachineBackupStatus) error {
		return want(s.Phase == phase, "phase %s (%s: %s), want %s", s.Phase, s.Reason, s.Message, phase)
	})
}

// tracker makes a tracker whose latest checkpoint has the given disks. Without disks the tracker has no checkpoint.
func (w *world) tracker(name string, disks ...string) *backupv1.VirtualMachineBackupTracker {
	w.t.Helper()
	return w.trackerOf("vm", name, disks...)
}

func (w *world) trackerOf(machine, name string, disks ...string) *backupv1.VirtualMachineBackupTracker {
	w.t.Helper()
	tr := gen.Tracker(gen.Meta(w.ns, name), machine)
	w.create(tr)
	if len(disks) > 0 {
		controlplane.Update(w.t, w.client, tr, true, func(tr *backupv1.VirtualMachineBackupTracker) {
			tr.Status.LatestCheckpoint = &backupv1.Checkpoint{
				Name: name + "-1", CreationTime: metav1.Now().Rfc3339Copy(), Disks: disks, BackupName: "b0", BackupUID: "b0-uid",
				Target: &backupv1.BackupTarget{PVCName: "target", PVCUID: "target-uid", Directory: "vm/b0-20260101T030405Z", ManifestSHA256: "digest"},
			}
		})
	}
	return tr
}

// backup makes a backup in phase Starting that holds the instance, as the controller does. If tr is nil, the backup
// uses no tracker.
func (w *world) backup(name string, tr *backupv1.VirtualMachineBackupTracker) *backupv1.VirtualMachineBackup {
	w.t.Helper()
	return w.backupOf(name, tr, func(*backupv1.VirtualMachineBackup) {})
}

func (w *world) backupOf(name string, tr *backupv1.VirtualMachineBackupTracker, edit func(*backupv1.VirtualMachineBackup)) *backupv1.VirtualMachineBackup {
	w.t.Helper()
	b := gen.Backup(gen.Meta(w.ns, name))
	b.Finalizers = []string{backupv1.BackupFinalizer}
	edit(b)
	if tr != nil {
		gen.SetTracker(tr.Name)(b)
	}
	w.create(b)
	controlplane.Update(w.t, w.client, w.vmi, true, func(v *kubevirtv1.VirtualMachineInstance) {
		if v.Status.ChangedBlockTracking == nil {
			v.Status.ChangedBlockTracking = &kubevirtv1.ChangedBlockTrackingStatus{State: kubevirtv1.ChangedBlockTrackingInitializing}
		}
		v.Status.ChangedBlockTracking.BackupStatus = &kubevirtv1.InstanceBackupStatus{BackupName: name}
	})
	controlplane.Update(w.t, w.client, b, true, func(b *backupv1.VirtualMachineBackup) {
		b.Status.Phase, b.Status.SourceName, b.Status.NodeName = backupv1.BackupStarting, "vm", w.node
		b.Status.InstanceUID, b.Status.Directory = w.vmi.UID, "vm/"+name+"-20260102T030405Z"
		b.Status.PVCName, b.Status.PVCUID = "target", "target-uid"
		if tr != nil {
			b.Status.CheckpointName, b.Status.BaseCheckpoint, b.Status.TrackerUID = tr.Name+"-2", tr.Status.LatestCheckpoint.DeepCopy(), tr.UID
		}
	})
	return b
}

// prune plays the controller after Copied or CopyFailed.
func (w *world) prune(b *backupv1.VirtualMachineBackup, result backupv1.BackupResult) {
	w.t.Helper()
	controlplane.Update(w.t, w.client, b, true, func(b *backupv1.VirtualMachineBackup) {
		b.Status.Phase, b.Status.Result = backupv1.BackupPruning, result
	})
}

func (w *world) delete(obj client.Object) {
	w.t.Helper()
	if err := w.client.Delete(w.t.Context(), obj); err != nil {
		w.t.Fatal(err)
	}
}

// conditionOf returns a condition of the instance, or an empty one.
func (w *world) conditionOf(s *kubevirtv1.VirtualMachineInstanceStatus, t kubevirtv1.ConditionType) kubevirtv1.Condition {
	for _, c := range s.Conditions {
		if c.Type == t {
			return c
		}
	}
	return kubevirtv1.Condition{}
}
