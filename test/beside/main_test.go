//go:build beside

// Package beside tests Varve in a cluster whose machines upstream's KubeVirt runs: backups, restores and schedules of
// its machines, bytes compared; upstream's own clients beside it; and that KubeVirt stays as it was when Varve goes.
package beside

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/controller/keep/harvesterbackup"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/lab"
	"github.com/varvebackup/varve/test/wait"
)

const (
	machine  = "machine"  // in test/kubevirt/machine.yaml, as the serial numbers of its disks
	kubeVirt = "kubevirt" // the namespace of KubeVirt's own pods

	bootTimeout   = 3 * time.Minute
	backupTimeout = 4 * time.Minute
)

var cluster struct{ kubeconfig, root string }

func TestMain(m *testing.M) {
	cluster.kubeconfig = os.Getenv("KUBECONFIG")
	root, err := filepath.Abs("../..")
	if err != nil || cluster.kubeconfig == "" {
		fmt.Fprintln(os.Stderr, "beside: set KUBECONFIG to the box's kubeconfig, or run make test-beside", err)
		os.Exit(1)
	}
	cluster.root = root
	os.Exit(m.Run())
}

// scene is a namespace with a machine.
type scene struct {
	*lab.Lab
	t        *testing.T
	location *lab.Location
}

func newScene(t *testing.T, namespace string) *scene {
	t.Helper()
	ctx := t.Context()
	l, err := lab.OpenFresh(ctx, cluster.kubeconfig, filepath.Join(cluster.root, "build"), namespace, 3*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	s := &scene{Lab: l, t: t}
	t.Cleanup(func() {
		if t.Failed() {
			s.explainFailure()
		}
	})
	s.location, err = l.BucketLocation(ctx, namespace, filepath.Dir(cluster.kubeconfig))
	s.mustSucceed(err)
	return s
}

func (s *scene) mustSucceed(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// runStep runs a part of the test, which finds the machine as the previous part left it. After a failed part, no other
// one runs.
func (s *scene) runStep(name string, test func(*scene)) {
	s.t.Helper()
	if !s.t.Run(name, func(t *testing.T) {
		part := *s
		part.t = t
		test(&part)
	}) {
		s.t.FailNow()
	}
}

// explainFailure logs what a person would look at first.
func (s *scene) explainFailure() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var backups harvesterv1.VirtualMachineBackupList
	_ = s.List(ctx, &backups, client.InNamespace(s.Namespace))
	for _, b := range backups.Items {
		s.t.Logf("backup %s: group %s, conditions %+v", b.Name, b.Status.Group, b.Status.Conditions)
	}
	var uploads velerov2.DataUploadList
	_ = s.List(ctx, &uploads, client.InNamespace(layout.Namespace))
	for _, u := range uploads.Items {
		if u.Spec.SourceNamespace == s.Namespace {
			s.t.Logf("upload %s: %+v", u.Name, u.Status)
		}
	}
	for _, in := range []string{s.Namespace, layout.Namespace} {
		s.Explain(ctx, in, s.t.Logf)
	}
}

// bootMachine creates the machine of test/kubevirt, and waits for its guest and until KubeVirt tracks its changes.
func (s *scene) bootMachine() {
	s.t.Helper()
	s.mustSucceed(s.CreateKubeVirtMachine(s.t.Context(), filepath.Join(cluster.root, "test/kubevirt/machine.yaml"), nil))
	s.waitTracked()
}

// waitTracked waits until the guest's agent answers, and until KubeVirt tracks what changes on the disks.
func (s *scene) waitTracked() {
	s.t.Helper()
	s.waitBooted()
	s.mustSucceed(s.WaitTracking(s.t.Context(), machine, kubevirtv1.ChangedBlockTrackingEnabled, time.Minute))
}

// waitBooted waits until the guest's agent answers.
func (s *scene) waitBooted() {
	s.t.Helper()
	_, err := s.WaitAgent(s.t.Context(), machine, bootTimeout)
	s.mustSucceed(err)
}

// getInstance returns the machine's instance, which must be there.
func (s *scene) getInstance() *kubevirtv1.VirtualMachineInstance {
	s.t.Helper()
	vmi := &kubevirtv1.VirtualMachineInstance{}
	s.mustSucceed(s.Get(s.t.Context(), client.ObjectKey{Namespace: s.Namespace, Name: machine}, vmi))
	return vmi
}

// runInGuest runs a script in the guest, after which its disks hold what it wrote. The variables root and data are the
// devices of the disks.
func (s *scene) runInGuest(script string) string {
	s.t.Helper()
	g, err := s.Guest(s.t.Context(), machine)
	s.mustSucceed(err)
	out, err := g.Run(s.t.Context(), `
for d in /sys/block/vd*; do
	case $(cat $d/serial) in ROOT) root=/dev/${d##*/} ;; DATA) data=/dev/${d##*/} ;; esac
done
`+script+"\nsync")
	s.mustSucceed(err)
	return out
}

// measureDisks returns the bytes of the disks as the guest sees them, by their names.
func (s *scene) measureDisks() map[string]int64 {
	s.t.Helper()
	texts := strings.Fields(s.runInGuest("blockdev --getsize64 $root; blockdev --getsize64 $data"))
	if len(texts) != 2 {
		s.t.Fatalf("the sizes of two disks: %q", texts)
	}
	sizes := map[string]int64{}
	for i, name := range []string{"root", "data"} {
		size, err := strconv.ParseInt(texts[i], 10, 64)
		s.mustSucceed(err)
		sizes[name] = size
	}
	return sizes
}

// hashDisks returns the SHA-256 of the disks as the guest sees them, by their names. Nothing may write to them.
func (s *scene) hashDisks() map[string]string {
	s.t.Helper()
	return s.hashFirstBytes(s.measureDisks())
}

// hashFirstBytes returns the SHA-256 of this many bytes of each disk. KubeVirt adds to a disk's file when the machine
// starts, and the guest sees that with its next start.
func (s *scene) hashFirstBytes(bytes map[string]int64) map[string]string {
	s.t.Helper()
	sums := map[string]string{}
	for name, size := range bytes {
		sums[name] = s.hashDisk(name, size)
	}
	return sums
}

// hashDisk returns the SHA-256 of the first bytes of a disk of the running machine. The rest, which KubeVirt adds to a
// disk's file and which no guest sees, must be empty.
func (s *scene) hashDisk(disk string, size int64) string {
	s.t.Helper()
	g, err := s.Guest(s.t.Context(), machine)
	s.mustSucceed(err)
	out, err := g.Launcher(s.t.Context(), "bash", "-euo", "pipefail", "-c", fmt.Sprintf(
		`tail -c +%[2]d %[1]s | tr -d '\0' | head -c 1 | wc -c; head -c %[3]d %[1]s | sha256sum`,
		"/var/run/kubevirt-private/vmi-disks/"+disk+"/disk.img", size+1, size))
	s.mustSucceed(err)
	rest, sum, _ := strings.Cut(strings.TrimSpace(out), "\n")
	if rest != "0" {
		s.t.Errorf("disk %s holds data behind its %d bytes", disk, size)
	}
	sum, _, _ = strings.Cut(sum, " ")
	if len(sum) != 64 {
		s.t.Fatalf("the sum of disk %s: %q", disk, out)
	}
	return sum
}

// createBackup creates a backup of the machine.
func (s *scene) createBackup(name string) *harvesterv1.VirtualMachineBackup {
	s.t.Helper()
	b := lab.NewMachineBackup(s.Namespace, name, machine)
	b.Annotations[harvesterv1.AnnotationLocation] = s.location.Name
	s.mustSucceed(s.Create(s.t.Context(), b))
	return b
}

// waitEnded waits until a backup is ready or has failed, which says why, and until KubeVirt has nothing of it any
// more.
func (s *scene) waitEnded(b *harvesterv1.VirtualMachineBackup) {
	s.t.Helper()
	what := "the end of backup " + b.Name
	s.mustSucceed(wait.For(s.t.Context(), backupTimeout, what, func(ctx context.Context) (bool, string, error) {
		err := s.Get(ctx, client.ObjectKeyFromObject(b), b)
		return b.IsReady() || b.HasFailed(), fmt.Sprintf("%d %%, %+v", b.Status.Progress, b.Status.Conditions), err
	}))
	if b.HasFailed() && *b.Status.Error.Message == "" {
		s.t.Errorf("backup %s failed, and does not say why", b.Name)
	}
	s.waitNothingLeft()
}

// backUp backs the machine up.
func (s *scene) backUp(name string) *harvesterv1.VirtualMachineBackup {
	s.t.Helper()
	b := s.createBackup(name)
	s.waitEnded(b)
	if !b.IsReady() {
		s.t.Fatalf("backup %s failed: %s", name, *b.Status.Error.Message)
	}
	if len(b.Status.VolumeBackups) != 2 {
		s.t.Fatalf("backup %s has %d disks: %+v", name, len(b.Status.VolumeBackups), b.Status.VolumeBackups)
	}
	return b
}

// waitNothingLeft waits until nothing is there that backups make in the machine's namespace while they run.
func (s *scene) waitNothingLeft() {
	s.t.Helper()
	kinds := []struct{ version, kind string }{
		{"backup.kubevirt.io/v1alpha1", "VirtualMachineBackup"},
		{"export.kubevirt.io/v1beta1", "VirtualMachineExport"},
		{"v1", "Secret"},
	}
	const what = "nothing of a backup to be left"
	s.mustSucceed(wait.For(s.t.Context(), 2*time.Minute, what, func(ctx context.Context) (bool, string, error) {
		var left []string
		for _, k := range kinds {
			objects, err := s.listObjects(ctx, k.version, k.kind, client.InNamespace(s.Namespace))
			if err != nil {
				return false, "", err
			}
			for i := range objects {
				left = append(left, k.kind+" "+objects[i].GetName())
			}
		}
		var claims corev1.PersistentVolumeClaimList
		if err := s.List(ctx, &claims, client.InNamespace(s.Namespace)); err != nil {
			return false, "", err
		}
		for i := range claims.Items {
			if c := &claims.Items[i]; strings.HasSuffix(c.Name, "-scratch") {
				left = append(left, "claim "+c.Name)
			}
		}
		return len(left) == 0, strings.Join(left, ", "), nil
	}))
}

// listObjects returns the objects of a kind.
func (s *scene) listObjects(
	ctx context.Context, version, kind string, options ...client.ListOption,
) ([]unstructured.Unstructured, error) {
	list := &unstructured.UnstructuredList{}
	list.SetAPIVersion(version)
	list.SetKind(kind + "List")
	err := s.List(ctx, list, options...)
	return list.Items, err
}

// listUploads returns the DataUploads of a backup.
func (s *scene) listUploads(ctx context.Context, b *harvesterv1.VirtualMachineBackup) ([]velerov2.DataUpload, error) {
	var list velerov2.DataUploadList
	err := s.List(ctx, &list, client.InNamespace(layout.Namespace),
		client.MatchingLabels{harvesterbackup.LabelBackup: string(b.UID)})
	return list.Items, err
}
