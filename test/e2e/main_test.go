//go:build e2e

// Package e2e tests what only a cluster can show: real pods, real libvirt, real guests under software emulation.
// Every test compares bytes, and each test that takes a backup rebuilds it with qemu-img alone.
package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1alpha1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/lab"
	"github.com/varvebackup/varve/test/verdict"
)

const (
	mib = int64(1) << 20
	gib = int64(1) << 30

	bootTimeout   = 3 * time.Minute
	backupTimeout = 5 * time.Minute
)

var cluster struct{ kubeconfig, build string }

func TestMain(m *testing.M) {
	cluster.kubeconfig = os.Getenv("KUBECONFIG")
	root, err := filepath.Abs("../..")
	if err != nil || cluster.kubeconfig == "" {
		fmt.Fprintln(os.Stderr, "e2e: set KUBECONFIG to the box's kubeconfig, or run make test-e2e", err)
		os.Exit(1)
	}
	cluster.build = filepath.Join(root, "build")
	os.Exit(m.Run())
}

// varveProgram returns the path of the command line that users have.
func varveProgram() string { return filepath.Join(cluster.build, "bin", "varve") }

// scene is one test's namespace with one running, tracked machine.
type scene struct {
	*lab.Lab
	t     *testing.T
	vm    string
	disks []lab.Disk
}

// newScene makes a namespace for the test. It is deleted with everything in it, and nothing may remain.
func newScene(t *testing.T, name string) *scene {
	t.Helper()
	t.Parallel()
	ctx := t.Context()
	l, err := lab.OpenFresh(ctx, cluster.kubeconfig, cluster.build, "e2e-"+name, 3*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	s := &scene{Lab: l, t: t, vm: "vm"}
	t.Cleanup(func() {
		if t.Failed() {
			s.explain()
		}
		if err := l.DeleteNamespace(context.WithoutCancel(ctx), 4*time.Minute); err != nil {
			t.Error(err)
		}
	})
	return s
}

// step runs a part of a test, which finds the machine as the previous part left it. After a failed part no other runs.
func (s *scene) step(name string, test func(*scene)) {
	s.t.Helper()
	if !s.t.Run(name, func(t *testing.T) {
		part := *s
		part.t = t
		test(&part)
	}) {
		s.t.FailNow()
	}
}

// explain logs what a person would look at first.
func (s *scene) explain() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var backups backupv1alpha1.VirtualMachineBackupList
	_ = s.List(ctx, &backups, client.InNamespace(s.Namespace))
	for _, b := range backups.Items {
		s.t.Logf("backup %s: %+v", b.Name, b.Status)
	}
	var vmis kubevirtv1.VirtualMachineInstanceList
	_ = s.List(ctx, &vmis, client.InNamespace(s.Namespace))
	for _, vmi := range vmis.Items {
		s.t.Logf("instance %s: deleted %v, status %+v", vmi.Name, vmi.DeletionTimestamp, vmi.Status)
	}
	s.Explain(ctx, s.Namespace, s.t.Logf)
}

func (s *scene) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// boot creates the claims and starts a tracked machine with these disks.
func (s *scene) boot(disks ...lab.Disk) {
	s.t.Helper()
	ctx := s.t.Context()
	s.disks = disks
	s.createDisks(disks...)
	s.must(s.StartTracked(ctx, s.vm, lab.TestSystem, bootTimeout, disks...))
}

// createDisks creates the claims of disks. Filesystem claims get an ext4 file system of most of their size.
func (s *scene) createDisks(disks ...lab.Disk) {
	s.t.Helper()
	ctx := s.t.Context()
	s.must(s.CreateClaims(ctx, s.vm, disks...))
	for _, d := range disks {
		if !d.Block {
			s.must(s.PopulateExt4(ctx, s.vm, d.Name, d.Bytes/8*7/mib*mib, d.Name, 0))
		}
	}
}

// target creates a claim for backups.
func (s *scene) target(name string, bytes int64) {
	s.t.Helper()
	s.must(s.Claim(s.t.Context(), name, bytes, corev1.PersistentVolumeFilesystem))
}

func (s *scene) tracker(name string) {
	s.t.Helper()
	s.must(s.Create(s.t.Context(), s.Tracker(name, s.vm)))
}

// guest runs a script in the guest. Disks with a file system are mounted at /disks/<name>.
func (s *scene) guest(script string) string {
	s.t.Helper()
	g, err := s.Guest(s.t.Context(), s.vm)
	s.must(err)
	out, err := g.Run(s.t.Context(), script)
	s.must(err)
	return out
}

// verify rebuilds the last backup of a chain and compares each disk with what it held at that point.
func (s *scene) verify(claim string, chain []*lab.PointInTime) {
	s.t.Helper()
	ctx := s.t.Context()
	last := chain[len(chain)-1]
	var backups []*backupv1alpha1.VirtualMachineBackup
	for _, p := range chain {
		backups = append(backups, p.Backup)
	}
	tool, err := s.Toolbox(ctx, "verify", claim)
	s.must(err)
	defer func() { s.must(tool.Close(ctx)) }()
	if len(last.Backup.Status.IncludedVolumes) != len(s.disks) {
		s.t.Errorf("backup %s has %d volumes, want %d", last.Backup.Name, len(last.Backup.Status.IncludedVolumes), len(s.disks))
	}
	for _, v := range last.Backup.Status.IncludedVolumes {
		restored, err := tool.Restore(ctx, claim, withVolume(backups, v.Name), v.Name, false)
		s.must(err)
		if restored.SHA256 != last.Sums[v.Name] {
			verdict.Errorf(s.t, "backup %s, volume %s (%s): restored %s, the disk held %s", last.Backup.Name, v.Name, v.Type, restored.SHA256, last.Sums[v.Name])
		}
	}
}

// point takes a backup of a frozen guest and checks its type.
func (s *scene) point(b *backupv1alpha1.VirtualMachineBackup, want backupv1alpha1.BackupType) *lab.PointInTime {
	s.t.Helper()
	p, err := s.PointInTime(s.t.Context(), s.vm, b, backupTimeout, nil)
	s.must(err)
	if p.Backup.Status.BackupType != want {
		s.t.Errorf("backup %s is %s, want %s: %+v", b.Name, p.Backup.Status.BackupType, want, p.Backup.Status)
	}
	return p
}

// failed waits for a backup to fail and checks its reason.
func (s *scene) failed(name, reason string) *backupv1alpha1.VirtualMachineBackup {
	s.t.Helper()
	b, err := s.WaitBackup(s.t.Context(), name, backupTimeout, "over", func(st *backupv1alpha1.VirtualMachineBackupStatus) bool { return st.Phase.Final() }, nil)
	s.must(err)
	if b.Status.Phase != backupv1alpha1.BackupFailed || b.Status.Reason != reason {
		s.t.Errorf("backup %s: %s %s (%s), want Failed %s", name, b.Status.Phase, b.Status.Reason, b.Status.Message, reason)
	}
	if b.Status.Message == "" {
		s.t.Errorf("backup %s failed without a message", name)
	}
	return b
}

// waitFor waits until done returns true for a backup's status.
func (s *scene) waitFor(name, what string, done func(*backupv1alpha1.VirtualMachineBackupStatus) bool) *backupv1alpha1.VirtualMachineBackup {
	s.t.Helper()
	b, err := s.WaitBackup(s.t.Context(), name, 2*time.Minute, what, done, nil)
	s.must(err)
	return b
}

// checkpoint returns the tracker's current checkpoint.
func (s *scene) checkpoint(tracker string) *backupv1alpha1.Checkpoint {
	s.t.Helper()
	obj := &backupv1alpha1.VirtualMachineBackupTracker{}
	s.must(s.Get(s.t.Context(), client.ObjectKey{Namespace: s.Namespace, Name: tracker}, obj))
	return obj.Status.LatestCheckpoint
}

// clean checks that no backup left anything: no lock, no utility volume, no attachment pod, no mount, no partial
// directory on the target, and in libvirt only the checkpoints that trackers name.
func (s *scene) clean(target string, checkpoints ...string) {
	s.t.Helper()
	ctx := s.t.Context()
	vmi := s.instance()
	if n := len(vmi.Spec.UtilityVolumes); n > 0 {
		s.t.Errorf("%d utility volumes are left", n)
	}
	if cbt := vmi.Status.ChangedBlockTracking; cbt != nil && cbt.BackupStatus != nil {
		s.t.Errorf("the lock of backup %s is left", cbt.BackupStatus.BackupName)
	}
	var pods corev1.PodList
	s.must(s.List(ctx, &pods, client.InNamespace(s.Namespace), client.HasLabels{layout.LabelAttachment}))
	if len(pods.Items) > 0 {
		s.t.Errorf("%d attachment pods are left", len(pods.Items))
	}
	g, err := s.Guest(ctx, s.vm)
	s.must(err)
	mounts, err := g.Launcher(ctx, "sh", "-c", "grep "+layout.UtilityDir+"/ /proc/self/mountinfo || true")
	s.must(err)
	if mounts != "" {
		s.t.Errorf("mounts are left in the launcher: %s", mounts)
	}
	s.checkpoints(checkpoints...)
	tool, err := s.Toolbox(ctx, "clean", target)
	s.must(err)
	partial, err := tool.Run(ctx, "find /mnt/"+target+" -name '*"+layout.PartialSuffix+"'")
	s.must(err)
	s.must(tool.Close(ctx))
	if partial != "" {
		s.t.Errorf("partial files are left: %s", partial)
	}
}

func (s *scene) delete(obj client.Object) {
	s.t.Helper()
	if err := s.Delete(s.t.Context(), obj); err != nil && !apierrors.IsNotFound(err) {
		s.t.Fatal(err)
	}
}

func (s *scene) vmObject() *kubevirtv1.VirtualMachine {
	s.t.Helper()
	vm := &kubevirtv1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.vm}}
	s.must(s.Get(s.t.Context(), client.ObjectKeyFromObject(vm), vm))
	return vm
}

// instance returns the machine's current instance.
func (s *scene) instance() *kubevirtv1.VirtualMachineInstance {
	s.t.Helper()
	vmi := &kubevirtv1.VirtualMachineInstance{}
	s.must(s.Get(s.t.Context(), client.ObjectKey{Namespace: s.Namespace, Name: s.vm}, vmi))
	return vmi
}

// strategy sets the machine's run strategy.
func (s *scene) strategy(to kubevirtv1.RunStrategy) {
	s.t.Helper()
	vm := s.vmObject()
	before := vm.DeepCopy()
	vm.Spec.RunStrategy = &to
	s.must(s.Patch(s.t.Context(), vm, client.MergeFrom(before)))
}
