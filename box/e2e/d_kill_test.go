//go:build box

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/varvebackup/varve/box/internal/loop"
)

// servicePID returns the PID of a service inside its node.
func servicePID(t *testing.T, node, service string) int {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(string(dir), node, "status.json"))
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]struct {
		PID int `json:"pid"`
	}
	if err := json.Unmarshal(data, &all); err != nil {
		t.Fatal(err)
	}
	return all[service].PID
}

// witness is a pod with a Filesystem and a Block volume, whose content must survive every kill.
type witness struct{ files, device string }

func newWitness(t *testing.T) witness {
	t.Helper()
	claim(t, "wfiles", "", "32Mi", corev1.PersistentVolumeFilesystem)
	claim(t, "wdevice", "", "16Mi", corev1.PersistentVolumeBlock)
	pod := probePod("witness", "node1", withClaim("wfiles", corev1.PersistentVolumeFilesystem), withDevice("wdevice"))
	start(t, pod)
	return witness{
		files:  probe(t, "witness", "fill", "/data/file", fmt.Sprint(8*mib)),
		device: probe(t, "witness", "fill", "/dev/data", fmt.Sprint(16*mib)),
	}
}

func (w witness) check(t *testing.T) {
	t.Helper()
	var files, device string
	eventually(t, "the witness to answer", func() (err error) {
		if files, err = kubectl("exec", "witness", "--", "/probe", "sum", "/data/file", fmt.Sprint(8*mib)); err != nil {
			return err
		}
		device, err = kubectl("exec", "witness", "--", "/probe", "sum", "/dev/data", fmt.Sprint(16*mib))
		return err
	})
	if files != w.files || device != w.device {
		t.Errorf(wrongData+"the witness reads %s and %s, not %s and %s", files, device, w.files, w.device)
	}
}

// TestKillServices kills each service. The node's init restarts it, and no container notices.
func TestKillServices(t *testing.T) {
	w := newWitness(t)
	for _, name := range []string{
		"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "containerd", "kubelet", "kube-proxy", "csi",
		"snapshot-controller", "csi-snapshotter",
	} {
		t.Run(name, func(t *testing.T) {
			pid := servicePID(t, "node1", name)
			if pid == 0 {
				t.Fatalf("%s does not run", name)
			}
			mustRun(t, "exec", "node1", "--", "kill", "-9", fmt.Sprint(pid))
			eventually(t, name+" to be started again", func() error {
				if now := servicePID(t, "node1", name); now == 0 || now == pid {
					return fmt.Errorf("its process is %d", now)
				}
				return nil
			})
			mustUp(t)
			w.check(t)
		})
	}
	pod := waitReady(t, "witness")
	if n := pod.Status.ContainerStatuses[0].RestartCount; n != 0 {
		t.Errorf("the container was restarted %d times: killing a service must not touch it", n)
	}
	// The cluster still does all of its work.
	start(t, probePod("after", "node1"))
}

// TestKillNodes kills the init of every node, which ends everything in it, as a crash of the machine would.
func TestKillNodes(t *testing.T) {
	w := newWitness(t)
	if _, err := kubectl("create", "configmap", "remembered"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := kubectl("delete", "configmap", "remembered"); err != nil {
			t.Error(err)
		}
	})
	for _, n := range readState(t).Nodes {
		if err := syscall.Kill(n.Init.PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "status to notice", func() error {
		if _, err := run("status"); err == nil {
			return errors.New("it calls a dead box healthy")
		}
		return nil
	})
	mustUp(t)
	w.check(t)
	if _, err := client.CoreV1().ConfigMaps(namespace).Get(t.Context(), "remembered", metav1.GetOptions{}); err != nil {
		t.Errorf("the cluster forgot: %v", err)
	}
	stop(t, "witness")
	noLoops(t)
}

// TestKillUp kills `box up` itself at several moments of a repair.
func TestKillUp(t *testing.T) {
	w := newWitness(t)
	for _, after := range []int{10, 30, 60, 100, 200, 400, 1000} {
		if init := readState(t).Nodes[0].Init.PID; init > 0 {
			if err := syscall.Kill(init, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				t.Fatal(err)
			}
		}
		killUp(t, time.Duration(after)*time.Millisecond)
	}
	mustUp(t)
	w.check(t)
}

// killUp starts `box up` and kills it after a while.
func killUp(t *testing.T, after time.Duration) {
	t.Helper()
	cmd := exec.Command(filepath.Join(bin, "box"), "--dir", string(dir), "up", "--bridge", bridge, "--nodes=2")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(after)
	if err := cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed, so an error is expected
}

// TestReset does to the box what a reset of the machine does: no process, no bridge, another boot, damaged files.
func TestReset(t *testing.T) {
	w := newWitness(t)
	for _, n := range readState(t).Nodes {
		if err := syscall.Kill(n.Init.PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	deleteBridge(t)
	loseVolumeMount(t)
	data, err := os.ReadFile(dir.State())
	if err != nil {
		t.Fatal(err)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	old := strings.ReplaceAll(string(data), strings.TrimSpace(string(boot)), "00000000-0000-0000-0000-000000000000")
	if err := os.WriteFile(dir.State(), []byte(old), 0o644); err != nil {
		t.Fatal(err)
	}
	truncate(t, filepath.Join(dir.PKI(), "apiserver.crt"))
	truncate(t, filepath.Join(dir.Node(1).Root(), "var/lib/kubelet/cpu_manager_state"))
	mustUp(t)
	w.check(t)
}

// loseVolumeMount removes the mount of the volumes' file system and its loop device, behind the box's back. No node runs.
func loseVolumeMount(t *testing.T) {
	t.Helper()
	eventually(t, "the volumes to be unmounted", func() error {
		if err := loop.DetachTree(dir.Volumes()); err != nil {
			return err
		}
		return syscall.Unmount(dir.Volumes(), 0)
	})
	// The kernel keeps the device until the killed nodes' mount namespaces have drained.
	eventually(t, "the loop device of the volumes to be detached", func() error {
		dev, err := loop.Find(dir.VolumeImage())
		if errors.Is(err, loop.ErrNotAttached) {
			return nil
		}
		if err == nil {
			err = dev.Detach()
		}
		return errors.Join(err, errors.New("it is still there"))
	})
}

// TestDamagedImageStore: containerd cannot read its database. The node gets a fresh one, and the images come back.
func TestDamagedImageStore(t *testing.T) {
	w := newWitness(t)
	kill(t, 1)
	garbage(t, filepath.Join(dir.Node(1).Root(), "var/lib/containerd/io.containerd.metadata.v1.bolt/meta.db"))
	mustUp(t)
	w.check(t)
}

// TestDamagedEtcd: nothing can restore the data. The box starts a fresh cluster, and says so.
func TestDamagedEtcd(t *testing.T) {
	kill(t, 1)
	garbage(t, filepath.Join(dir.Node(1).Etcd(), "member/snap/db"))
	out := mustRun(t, "up", "--bridge", bridge, "--nodes=2")
	if !strings.Contains(out, "FRESH cluster") {
		t.Errorf("the loss is not announced:\n%s", out)
	}
	mustUp(t)
	start(t, probePod("fresh", "node2")) // its image was loaded into the old cluster's nodes
}

// TestDamagedState: the record of what the box owns is lost while the box is running.
func TestDamagedState(t *testing.T) {
	truncate(t, dir.State())
	out := mustRun(t, "up", "--bridge", bridge, "--nodes=2")
	if !strings.Contains(out, "FRESH cluster") {
		t.Errorf("the loss is not announced:\n%s", out)
	}
	mustUp(t)
}

// TestDamagedVolumes: the kernel cannot read the volumes' file system. The box starts a fresh cluster, and says so.
func TestDamagedVolumes(t *testing.T) {
	for i := range readState(t).Nodes {
		kill(t, i+1)
	}
	loseVolumeMount(t)
	garbage(t, dir.VolumeImage())
	out := mustRun(t, "up", "--bridge", bridge, "--nodes=2")
	if !strings.Contains(out, "FRESH cluster") {
		t.Errorf("the loss is not announced:\n%s", out)
	}
	mustUp(t)
}

func kill(t *testing.T, node int) {
	t.Helper()
	if err := syscall.Kill(readState(t).Nodes[node-1].Init.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// TestUpDuringDeath runs `box up` immediately after each of two kills, when the killed node may still look alive.
func TestUpDuringDeath(t *testing.T) {
	w := newWitness(t)
	for range 2 {
		kill(t, 1)
		mustUp(t)
	}
	w.check(t)
}

func truncate(t *testing.T, file string) {
	t.Helper()
	if err := os.Truncate(file, 0); err != nil {
		t.Fatal(err)
	}
}

func garbage(t *testing.T, file string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(strings.Repeat("garbage ", 8192)), 0o600); err != nil {
		t.Fatal(err)
	}
}
