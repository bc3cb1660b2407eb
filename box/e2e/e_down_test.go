//go:build box

package e2e

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

func deleteBridge(t *testing.T) {
	t.Helper()
	if out, err := exec.Command("ip", "link", "del", bridge).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// TestDownLeavesNothing takes down a box with pods and volumes in use, and looks for traces of it on the host.
func TestDownLeavesNothing(t *testing.T) {
	newWitness(t)
	claim(t, "idle", "box-immediate", "16Mi", corev1.PersistentVolumeFilesystem)
	mustS3(t)
	subnet := strings.TrimSuffix(readState(t).Plan.Base, "0.0/16") // such as "10.213."
	if loops(t) == "" {
		t.Fatal("no volume is in use: the test would show nothing")
	}
	mustRun(t, "down")
	t.Cleanup(func() { mustUp(t) }) // the witness' own cleanup, which runs after this one, finds a new, empty cluster

	if _, err := os.Stat(string(dir)); !os.IsNotExist(err) {
		t.Errorf("%s is still there (%v)", dir, err)
	}
	noLoopsAtAll(t)
	for what, command := range map[string][]string{
		"links":              {"ip", "-br", "link"},
		"routes":             {"ip", "route"},
		"network namespaces": {"ip", "netns"},
	} {
		out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(out), bridge) || strings.Contains(string(out), subnet) {
			t.Errorf("%s stay:\n%s", what, out)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), string(dir)) {
		t.Errorf("mounts stay:\n%s", mounts)
	}
	noCgroups(t)
	noProcesses(t)
	if out := mustRun(t, "down"); !strings.Contains(out, "no box") {
		t.Errorf("a second down says %q", out)
	}
}

// TestFrozenNode freezes a whole node, as runc freezes a container, and removes the box. On v1 a frozen process does not die.
func TestFrozenNode(t *testing.T) {
	mustUp(t)
	freezer := filepath.Join("/sys/fs/cgroup/freezer", dir.Node(1).Cgroup(), "freezer.state")
	frozen := "FROZEN"
	if _, err := os.Stat(freezer); err != nil {
		freezer, frozen = filepath.Join("/sys/fs/cgroup", dir.Node(1).Cgroup(), "cgroup.freeze"), "1"
	}
	if err := os.WriteFile(freezer, []byte(frozen), 0); err != nil {
		t.Fatal(err)
	}
	mustRun(t, "down")
	noCgroups(t)
	noProcesses(t)
}

// TestKillFirstUp kills `box up` at several moments of a box's first start. `box down` must clean up after each.
func TestKillFirstUp(t *testing.T) {
	for _, after := range []int{2, 10, 20, 50, 150, 300, 700, 2000} {
		mustRun(t, "down")
		killUp(t, time.Duration(after)*time.Millisecond)
		mustRun(t, "down")
		if _, err := os.Stat(string(dir)); !os.IsNotExist(err) {
			t.Fatalf("%s is still there (%v), after a kill at %d ms", dir, err, after)
		}
		noCgroups(t)
		noProcesses(t)
		noLoopsAtAll(t)
	}
	for _, after := range []int{5, 100, 1000} {
		killUp(t, time.Duration(after)*time.Millisecond)
	}
	mustUp(t)
}

// noLoopsAtAll looks for loop devices of volumes, and for that of the volumes' file system.
func noLoopsAtAll(t *testing.T) {
	t.Helper()
	out, err := exec.Command("losetup", "--list").CombinedOutput()
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(out), string(dir)) {
		t.Errorf("loop devices stay:\n%s", out)
	}
}

func noCgroups(t *testing.T) {
	t.Helper()
	err := filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() == dir.Cgroup() {
			t.Errorf("the cgroup %s stays", path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// noProcesses looks for processes that run the box's programs, or that were started with its paths.
func noProcesses(t *testing.T) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err == nil && strings.Contains(string(data), string(dir)+"/") {
			t.Errorf("%s runs %q", filepath.Dir(f), data)
		}
	}
}
