// Package mounttest runs tests in a mount namespace of their own and plays the kubelet there. It provides pods
// directories whose mounts propagate, claims that are mounted for attachment pods, and the view that a launcher's
// container has of its utility directory. It is only for tests and needs root.
package mounttest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/varvebackup/varve/internal/layout"
)

// marker is an environment variable of the process that runs the tests.
const marker = "VARVE_TEST_PRIVATE_MOUNTS"

// Main runs the tests of a package in a new mount namespace, from which no mount leaks: it calls run there and ends
// the process. Without root it fails instead of skipping the tests.
func Main(run func()) {
	if os.Getenv(marker) != "" {
		run()
		return
	}
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "these tests mount file systems in a namespace of their own: run them as root")
		os.Exit(1)
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), marker+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// Go makes / recursively private in the new namespace before anything runs.
	cmd.SysProcAttr = &unix.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		os.Exit(exit.ExitCode())
	case err != nil:
		fmt.Fprintln(os.Stderr, "run the tests in a mount namespace:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Kubelet is a pods directory whose mounts propagate, as the kubelet's do.
type Kubelet struct {
	t testing.TB
	// PodsDir is the path of the directory.
	PodsDir string
}

// NewKubelet makes a pods directory, which is removed when the test ends.
func NewKubelet(tb testing.TB) *Kubelet {
	tb.Helper()
	dir, err := os.MkdirTemp("", "varve-pods")
	must(tb, err)
	must(tb, unix.Mount(dir, dir, "", unix.MS_BIND, ""))
	must(tb, unix.Mount("", dir, "", unix.MS_SHARED, ""))
	tb.Cleanup(func() {
		// Nothing may be mounted below the directory when its files are deleted.
		must(tb, unix.Unmount(dir, unix.MNT_DETACH))
		must(tb, os.RemoveAll(dir))
	})
	return &Kubelet{t: tb, PodsDir: dir}
}

// Claim mounts an empty file system as the kubelet does for a pod's claim, and returns its root.
func (k *Kubelet) Claim(pod types.UID, plugin, volume string) string {
	k.t.Helper()
	dir := filepath.Join(k.PodsDir, string(pod), "volumes", plugin, volume)
	if plugin == "kubernetes.io~csi" {
		dir = filepath.Join(dir, "mount")
	}
	must(k.t, os.MkdirAll(dir, 0o755))
	must(k.t, unix.Mount("claim", dir, "tmpfs", 0, "size=8m"))
	return dir
}

// Hang covers the root of a claim with a file system whose server never answers, until restore is called or the test
// ends. fail ends the calls that wait, with an error, and leaves the file system there.
func (k *Kubelet) Hang(claim string) (fail, restore func()) {
	k.t.Helper()
	server, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	must(k.t, err)
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", server.Fd())
	must(k.t, unix.Mount("hung", claim, "fuse.hung", unix.MS_NODEV|unix.MS_NOSUID, options))
	fail = sync.OnceFunc(func() { must(k.t, server.Close()) })
	restore = sync.OnceFunc(func() {
		fail()
		must(k.t, unix.Unmount(claim, unix.MNT_DETACH))
	})
	k.t.Cleanup(restore)
	return fail, restore
}

// Launcher makes the emptyDirs of a launcher pod and returns where its container sees the utility directory: a
// slave of the node's mount, as with mount propagation HostToContainer.
func (k *Kubelet) Launcher(pod types.UID) string {
	k.t.Helper()
	dir := layout.NodeUtilityDir(k.PodsDir, pod)
	must(k.t, os.MkdirAll(dir, 0o755))
	view, err := os.MkdirTemp("", "varve-view")
	must(k.t, err)
	must(k.t, unix.Mount(dir, view, "", unix.MS_BIND|unix.MS_REC, ""))
	must(k.t, unix.Mount("", view, "", unix.MS_SLAVE|unix.MS_REC, ""))
	k.t.Cleanup(func() {
		// A cover may be on top of the view.
		for unix.Unmount(view, unix.MNT_DETACH) == nil {
		}
		must(k.t, os.Remove(view))
	})
	return view
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
