//go:build soak

package soak

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1alpha1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/gen"
	"github.com/varvebackup/varve/test/lab"
	"github.com/varvebackup/varve/test/verdict"
)

// TestPull_underKills pulls 2 GiB with varve itself while the export pod is killed again and again, and the handler and the
// controller once.
func TestPull_underKills(t *testing.T) {
	ctx := t.Context()
	s := open(t, "varve-soak-pull", nil)
	disk := lab.Disk{Name: "big", Bytes: 3 * gib}
	s.must(s.CreateClaims(ctx, vmName, disk))
	s.must(s.PopulateExt4(ctx, vmName, disk.Name, disk.Bytes/8*7/mib*mib, disk.Name, 2048))
	s.must(s.Claim(ctx, "scratch", gib, corev1.PersistentVolumeFilesystem))
	vm, err := s.Machine(vmName, lab.TestSystem, map[string]string{lab.TrackingLabel: "true"}, disk)
	s.must(err)
	*vm.Spec.RunStrategy = kubevirtv1.RunStrategyAlways
	s.must(s.Create(ctx, vm))
	s.must(s.Create(ctx, s.Tracker("t", vmName)))
	s.must(s.Create(ctx, &corev1.Secret{ObjectMeta: gen.Meta(s.Namespace, "clients"), Data: map[string][]byte{"token": []byte("the token of the clients")}}))
	s.ready()

	g, err := s.Guest(ctx, vmName)
	s.must(err)
	s.must(g.Freeze(ctx))
	vmi := &kubevirtv1.VirtualMachineInstance{}
	s.must(s.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: vmName}, vmi))
	sums, err := g.DiskSums(ctx, vmi)
	s.must(err)
	b := s.Backup("b", "t", "scratch")
	b.Spec.Mode, b.Spec.TokenSecretRef, b.Spec.SkipQuiesce = backupv1alpha1.PullMode, ptr.To("clients"), true
	s.must(s.Create(ctx, b))
	b, err = s.WaitBackup(ctx, b.Name, 5*time.Minute, "serving", func(st *backupv1alpha1.VirtualMachineBackupStatus) bool {
		return st.Phase == backupv1alpha1.BackupServing || st.Phase.Final()
	}, nil)
	s.must(err)
	s.must(g.Thaw(ctx))

	killing, stop := context.WithCancel(ctx)
	kills := make(chan int, 1)
	go func() { kills <- s.killExports(killing) }()
	dir := filepath.Join(t.TempDir(), "b")
	began := time.Now()
	out, err := exec.CommandContext(ctx, program(t), "backup", "pull", b.Name, "--kubeconfig", os.Getenv("KUBECONFIG"),
		"-n", s.Namespace, "--output", dir, "--progress", "none", "--format", "raw").CombinedOutput()
	stop()
	n := <-kills
	t.Logf("pulled in %s while the export pod was killed %d times: %v\n%s", time.Since(began).Round(time.Second), n, err, out)
	if err != nil || n < 3 {
		t.FailNow()
	}
	file, err := os.Open(filepath.Join(dir, "big.raw"))
	s.must(err)
	defer file.Close()
	h := sha256.New()
	_, err = io.Copy(h, file)
	s.must(err)
	if got := hex.EncodeToString(h.Sum(nil)); got != sums["big"] {
		verdict.Errorf(t, "pulled %s, the disk held %s", got, sums["big"])
	}
	s.must(s.Get(ctx, client.ObjectKeyFromObject(b), b))
	data := int64(2048+64) * mib
	if moved := b.Status.MovedBytes; moved < 2048*mib || moved > data+int64(n+1)*64*mib {
		t.Errorf("read %d bytes of at most %d", moved, data)
	}
	// A deletion says that the data was read only while the endpoints answer, and the last kill was a moment ago.
	_, err = s.WaitBackup(ctx, b.Name, time.Minute, "ready", func(st *backupv1alpha1.VirtualMachineBackupStatus) bool {
		return meta.IsStatusConditionTrue(st.Conditions, backupv1alpha1.ConditionReady)
	}, nil)
	s.must(err)
	s.must(s.Delete(ctx, b))
	s.must(s.WaitGone(ctx, b, 3*time.Minute))
	tracker := &backupv1alpha1.VirtualMachineBackupTracker{}
	s.must(s.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: "t"}, tracker))
	if c := tracker.Status.LatestCheckpoint; c == nil || c.BackupUID != b.UID {
		t.Errorf("the tracker has %+v", c)
	}
}

// killEvery is the pause between two kills of the export pod. It needs some seconds to come back.
const killEvery = 8 * time.Second

// killExports deletes the export pod again and again, and kills the handler and the controller once, until ctx ends.
func (s *soak) killExports(ctx context.Context) (n int) {
	ticker := time.NewTicker(killEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return n
		case <-ticker.C:
		}
		if err := s.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(s.Namespace), client.HasLabels{layout.LabelExport}, client.GracePeriodSeconds(0)); err == nil {
			n++
		}
		if n == 2 || n == 3 {
			s.t.Logf("killed %s", s.strike(n-2, 0)) // the controller, and then the handler
		}
	}
}
