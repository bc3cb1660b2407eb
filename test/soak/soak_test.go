//go:build soak

package soak

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1alpha1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/lab"
	"github.com/varvebackup/varve/test/verdict"
	"github.com/varvebackup/varve/test/wait"
)

const (
	namespace = "varve-soak"
	vmName    = "soak"
	target    = "backups"
	mib       = int64(1) << 20
	gib       = int64(1) << 30
)

// victims are the processes to kill, with the namespace and label of their pod and the executable.
var victims = []struct {
	name, namespace, label, value, exe string
	shim                               bool
}{
	{name: "controller", namespace: "varve", label: "app.kubernetes.io/component", value: "controller", exe: "varve"},
	{name: "handler", namespace: "varve", label: "app.kubernetes.io/component", value: "handler", exe: "varve"},
	{name: "launcher", namespace: namespace, label: layout.LabelApp, value: "virt-launcher", exe: "varve-launcher"},
	{name: "qemu", namespace: namespace, label: layout.LabelApp, value: "virt-launcher", exe: "qemu-system-x86_64"},
	{name: "shim", namespace: namespace, label: layout.LabelApp, value: "virt-launcher", exe: "varve-launcher", shim: true},
}

func envInt(t *testing.T, name string, def int64) int64 {
	t.Helper()
	v := os.Getenv(name)
	if v == "" {
		return def
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

func TestKillsLeaveNothingWrong(t *testing.T) {
	rounds := envInt(t, "SOAK_BACKUPS", 24)
	seed := envInt(t, "SOAK_SEED", time.Now().UnixNano())
	t.Logf("SOAK_SEED=%d SOAK_BACKUPS=%d", seed, rounds)
	s := open(t, namespace, rand.New(rand.NewPCG(uint64(seed), 0)))
	s.boot()
	for i := range rounds {
		s.round(int(i))
	}
	s.t.Logf("done %d, failed %d, incremental %d, restored and compared %d; killed %v", s.done, s.failed, s.incrementals, s.compared, s.killed)
	if s.done == 0 || s.failed == 0 || s.incrementals == 0 {
		t.Error("the run proved little: it needs backups that succeed, that fail and that are incremental; give it more rounds")
	}
	s.leaks()
}

type soak struct {
	*lab.Lab
	t      *testing.T
	rand   *rand.Rand
	chain  []*backupv1alpha1.VirtualMachineBackup
	killed map[string]int

	done, failed, incrementals, compared int
}

func open(t *testing.T, namespace string, r *rand.Rand) *soak {
	t.Helper()
	build, err := filepath.Abs("../../build")
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	l, err := lab.OpenFresh(ctx, os.Getenv("KUBECONFIG"), build, namespace, 5*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !t.Failed() {
			if err := l.DeleteNamespace(context.WithoutCancel(ctx), 5*time.Minute); err != nil {
				t.Error(err)
			}
		}
	})
	return &soak{Lab: l, t: t, rand: r, killed: map[string]int{}}
}

func (s *soak) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *soak) boot() {
	ctx := s.t.Context()
	disks := []lab.Disk{{Name: "one", Bytes: gib}, {Name: "two", Bytes: 512 * mib}}
	s.must(s.CreateClaims(ctx, vmName, disks...))
	for _, d := range disks {
		s.must(s.PopulateExt4(ctx, vmName, d.Name, d.Bytes/8*7/mib*mib, d.Name, 0))
	}
	s.must(s.Claim(ctx, target, 30*gib, corev1.PersistentVolumeFilesystem))
	vm, err := s.Machine(vmName, lab.TestSystem, map[string]string{lab.TrackingLabel: "true"}, disks...)
	s.must(err)
	*vm.Spec.RunStrategy = kubevirtv1.RunStrategyAlways
	s.must(s.Create(ctx, vm))
	s.must(s.Create(ctx, s.Tracker("t", vmName)))
	s.ready()
	_, err = s.guest(lab.Fill("/disks/one/base", 160) + lab.Fill("/disks/two/base", 160) + `sync`)
	s.must(err)
}

// ready waits until the guest is up and tracked, whatever was killed before.
func (s *soak) ready() {
	_, err := s.WaitAgent(s.t.Context(), vmName, 5*time.Minute)
	s.must(err)
	s.must(s.WaitTracking(s.t.Context(), vmName, kubevirtv1.ChangedBlockTrackingEnabled, 2*time.Minute))
}

func (s *soak) guest(script string) (string, error) {
	g, err := s.Guest(s.t.Context(), vmName)
	if err != nil {
		return "", err
	}
	return g.Run(s.t.Context(), script)
}

// round changes something, starts a backup, kills something at a random moment (in two rounds of three), and compares
// what can be restored.
func (s *soak) round(i int) {
	ctx := s.t.Context()
	s.ready()
	change := fmt.Sprintf(`for d in one two; do head -c %[1]d /disks/$d/base >/disks/$d/r%[2]d; head -c 500000 /dev/urandom >>/disks/$d/r%[2]d; dd if=/dev/urandom of=/disks/$d/base bs=64k count=3 seek=%[3]d conv=notrunc; done; rm -f /disks/one/r%[4]d; sync`,
		1000000+s.rand.IntN(60000000), i%4, s.rand.IntN(2000), (i+2)%4)
	if _, err := s.guest(change); err != nil {
		// A guest that was just killed comes back, and the next round tries again.
		s.t.Logf("round %d: guest: %v", i, err)
		return
	}
	hit, created := make(chan string, 1), make(chan struct{})
	begin := sync.OnceFunc(func() { close(created) })
	if i%3 != 0 {
		victim, after := s.rand.IntN(len(victims)), time.Duration(s.rand.IntN(5000))*time.Millisecond
		go func() {
			<-created
			hit <- s.strike(victim, after)
		}()
	} else {
		hit <- "nothing"
	}
	name := fmt.Sprintf("b%03d", i)
	p, err := s.PointInTime(ctx, vmName, s.Backup(name, "t", target), 10*time.Minute, func(*backupv1alpha1.VirtualMachineBackupStatus) { begin() })
	begin()
	what := <-hit
	s.killed[what]++
	b := &backupv1alpha1.VirtualMachineBackup{}
	if getErr := s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, b); getErr != nil {
		s.t.Logf("round %d: killed %s before the backup was created: %v", i, what, err)
		return
	}
	b, waitErr := s.WaitBackup(ctx, name, 10*time.Minute, "over", func(st *backupv1alpha1.VirtualMachineBackupStatus) bool { return st.Phase.Final() }, nil)
	s.must(waitErr)
	s.t.Logf("round %d: killed %s: %s %s %s %s", i, what, b.Status.Phase, b.Status.BackupType, b.Status.Reason, b.Status.Message)
	if b.Status.Phase != backupv1alpha1.BackupDone {
		s.failed++
		return
	}
	s.done++
	if b.Status.BackupType == backupv1alpha1.Incremental {
		s.incrementals++
	}
	s.chain = append(s.chain, b)
	if err != nil || p == nil || len(p.Sums) != len(b.Status.IncludedVolumes) {
		// The guest died around the point in time, so it is not known what the disks held. The chain continues
		// through this backup, and the next backup with known content proves it.
		s.t.Logf("round %d: the point in time is not known exactly: %v", i, err)
		return
	}
	s.compare(p.Sums)
}

// strike kills a victim after a while and returns what it killed.
func (s *soak) strike(which int, after time.Duration) string {
	v := victims[which]
	timer := time.NewTimer(after)
	defer timer.Stop()
	<-timer.C
	var pods corev1.PodList
	if err := s.List(s.t.Context(), &pods, client.InNamespace(v.namespace), client.MatchingLabels{v.label: v.value}); err != nil {
		return fmt.Sprintf("nothing: %v", err)
	}
	for _, pod := range pods.Items {
		found, err := processes(pod.UID)
		if err != nil || len(found[v.exe]) == 0 {
			continue
		}
		pid := found[v.exe][0]
		if v.shim {
			if pid, err = shim(pid); err != nil {
				return fmt.Sprintf("nothing: %v", err)
			}
		}
		if err := kill(pid); err != nil {
			return fmt.Sprintf("nothing: %v", err)
		}
		return v.name
	}
	return "nothing: no " + v.name
}

func (s *soak) compare(sums map[string]string) {
	ctx := s.t.Context()
	tool, err := s.Toolbox(ctx, "compare", target)
	s.must(err)
	for volume, want := range sums {
		restored, err := tool.Restore(ctx, target, s.chain, volume, false)
		s.must(err)
		if restored.SHA256 != want {
			verdict.Errorf(s.t, "%s, volume %s: restored %s, the disk held %s", s.chain[len(s.chain)-1].Name, volume, restored.SHA256, want)
		}
		s.compared++
	}
	s.must(tool.Close(ctx))
}

// notYet makes Wait check again: the last kill may still be on its way through the layers.
func notYet(err error) (bool, string, error) { return false, err.Error(), nil }

// leaks checks that nothing is left once everything has come to rest.
func (s *soak) leaks() {
	ctx := s.t.Context()
	s.ready()
	s.must(wait.For(ctx, 3*time.Minute, "nothing to be left", func(ctx context.Context) (bool, string, error) {
		vmi := &kubevirtv1.VirtualMachineInstance{}
		if err := s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: vmName}, vmi); err != nil {
			return notYet(err)
		}
		var pods corev1.PodList
		if err := s.List(ctx, &pods, client.InNamespace(namespace)); err != nil {
			return false, "", err
		}
		g, err := s.Guest(ctx, vmName)
		if err != nil {
			return notYet(err)
		}
		mounts, err := g.Launcher(ctx, "sh", "-c", "grep -c "+layout.UtilityDir+"/ /proc/self/mountinfo || true")
		if err != nil {
			return notYet(err)
		}
		checkpoints, err := g.Launcher(ctx, "sh", "-c", `virsh -q checkpoint-list --name "$(virsh -q list --name | head -n 1)"`)
		if err != nil {
			return notYet(err)
		}
		tracker := &backupv1alpha1.VirtualMachineBackupTracker{}
		if err := s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "t"}, tracker); err != nil {
			return false, "", err
		}
		want := ""
		if tracker.Status.LatestCheckpoint != nil {
			want = tracker.Status.LatestCheckpoint.Name
		}
		// libvirt has no colons in its names.
		checkpoints = strings.ReplaceAll(checkpoints, "_", ":")
		locked := vmi.Status.ChangedBlockTracking != nil && vmi.Status.ChangedBlockTracking.BackupStatus != nil
		seen := fmt.Sprintf("%d pods, %d utility volumes, lock %v, %s mounts, checkpoints %q (want %q)",
			len(pods.Items), len(vmi.Spec.UtilityVolumes), locked, strings.TrimSpace(mounts), strings.TrimSpace(checkpoints), want)
		ok := len(pods.Items) == 1 && len(vmi.Spec.UtilityVolumes) == 0 && !locked && strings.TrimSpace(mounts) == "0" && strings.TrimSpace(checkpoints) == want
		return ok, seen, nil
	}))
}

// program returns the path of Varve's CLI.
func program(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../../build/bin/varve")
	if err != nil {
		t.Fatal(err)
	}
	return path
}
