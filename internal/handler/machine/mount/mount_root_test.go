//go:build root

package mount

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/varvebackup/varve/internal/handler/machine/mount/mounttest"
	"github.com/varvebackup/varve/internal/layout"
)

func TestMain(m *testing.M) { mounttest.Main(func() { os.Exit(m.Run()) }) }

const (
	launcher   = types.UID("launcher-pod")
	attachment = types.UID("attachment-pod")
	csi        = "kubernetes.io~csi"
)

// onCSI returns a volume that a CSI driver mounted for the attachment pod.
func onCSI(volume string) Source { return Source{Pod: attachment, Plugin: PluginCSI, Volume: volume} }

func setUp(t *testing.T) (*mounttest.Kubelet, *Mounts) {
	t.Helper()
	k := mounttest.NewKubelet(t)
	m, err := Open(k.PodsDir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return k, m
}

func write(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func TestMount_claimAppearsInTheLauncherAndGoesAgain(t *testing.T) {
	for _, plugin := range []string{csi, "kubernetes.io~local-volume", "kubernetes.io~nfs"} {
		t.Run(plugin, func(t *testing.T) {
			k, m := setUp(t)
			view := k.Launcher(launcher)
			claim := k.Claim(attachment, plugin, "pv-1")
			if err := m.Cover(launcher); err != nil {
				t.Fatal(err)
			}
			for range 2 { // it is idempotent
				if err := m.Attach(launcher, "backup-1", Source{Pod: attachment, Plugin: plugin, Volume: "pv-1"}, ""); err != nil {
					t.Fatal(err)
				}
			}
			write(t, filepath.Join(view, "backup-1", "file"))
			if !exists(filepath.Join(claim, "file")) {
				t.Fatal("what the launcher writes is not on the claim")
			}
			if names, err := m.Names(launcher); err != nil || !slices.Equal(names, []string{"backup-1"}) {
				t.Errorf("names %v %v", names, err)
			}
			for range 2 {
				if err := m.Detach(launcher, "backup-1", false); err != nil {
					t.Fatal(err)
				}
			}
			if exists(filepath.Join(view, "backup-1")) {
				t.Error("the launcher still sees the mount point")
			}
			if err := m.Uncover(launcher); err != nil {
				t.Fatal(err)
			}
			if all, err := m.All(); err != nil || len(all) != 0 {
				t.Errorf("left mounted: %v %v", all, err)
			}
			if !exists(filepath.Join(claim, "file")) {
				t.Error("the data is gone")
			}
		})
	}
}

// The kubelet deletes an emptyDir with os.RemoveAll, or unmounts it first if it is a tmpfs.
func TestMount_keepsTheKubeletFromDeletingTheClaimWithThePod(t *testing.T) {
	k, m := setUp(t)
	k.Launcher(launcher)
	claim := k.Claim(attachment, csi, "pv-1")
	write(t, filepath.Join(claim, "yesterdays-backup"))
	if err := m.Attach(launcher, "backup-1", onCSI("pv-1"), ""); err == nil {
		t.Fatal("a claim was mounted into a directory that the kubelet would delete with its content")
	}
	if err := m.Cover(launcher); err != nil {
		t.Fatal(err)
	}
	if err := m.Attach(launcher, "backup-1", onCSI("pv-1"), ""); err != nil {
		t.Fatal(err)
	}
	dir := layout.NodeUtilityDir(k.PodsDir, launcher)
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil || fs.Type != unix.TMPFS_MAGIC {
		t.Fatalf("the kubelet does not see a tmpfs: %x %v", fs.Type, err)
	}
	if err := unix.Unmount(dir, 0); !errors.Is(err, unix.EBUSY) {
		t.Errorf("the kubelet could unmount the cover: %v", err)
	}
	if !exists(filepath.Join(claim, "yesterdays-backup")) {
		t.Error("the data is gone")
	}
}

func TestUnmount_waitsForABusyVolume(t *testing.T) {
	k, m := setUp(t)
	view := k.Launcher(launcher)
	k.Claim(attachment, csi, "pv-1")
	if err := errors.Join(m.Cover(launcher), m.Attach(launcher, "backup-1", onCSI("pv-1"), "")); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(view, "backup-1", "open"))
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Detach(launcher, "backup-1", false); !errors.Is(err, ErrBusy) {
		t.Fatalf("busy: %v", err)
	}
	if err := m.Uncover(launcher); !errors.Is(err, ErrBusy) {
		t.Errorf("uncover: %v", err)
	}
	if err := m.Detach(launcher, "backup-1", true); err != nil {
		t.Fatal(err)
	}
	if names, err := m.Names(launcher); err != nil || len(names) != 0 {
		t.Errorf("names %v %v", names, err)
	}
	f.Close()
}

func TestMount_refusesAClaimThatIsNotMounted(t *testing.T) {
	k, m := setUp(t)
	k.Launcher(launcher)
	bare := filepath.Join(k.PodsDir, string(attachment), "volumes", csi, "pv-1", "mount")
	if err := os.MkdirAll(bare, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := m.Cover(launcher); err != nil {
		t.Fatal(err)
	}
	for _, attachment := range []types.UID{attachment, "no-such-pod"} {
		if err := m.Attach(launcher, "backup-1", onCSI("pv-1"), ""); !errors.Is(err, ErrNotAttached) {
			t.Errorf("%s: %v", attachment, err)
		}
	}
	if err := m.RemovePartial(onCSI("pv-1"), "vm/b1"); !errors.Is(err, ErrNotAttached) {
		t.Errorf("remove: %v", err)
	}
}

// A launcher controls what is in its emptyDirs. Nothing in them may lead out of them.
func TestMount_refusesSymlinksOfTheLauncher(t *testing.T) {
	k, m := setUp(t)
	view := k.Launcher(launcher)
	k.Claim(attachment, csi, "pv-1")
	victim := t.TempDir()
	if err := m.Cover(launcher); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(view, "backup-1")
	if err := os.Symlink(victim, link); err != nil {
		t.Fatal(err)
	}
	if err := m.Attach(launcher, "backup-1", onCSI("pv-1"), ""); !errors.Is(err, ErrUnsafePath) {
		t.Errorf("attach: %v", err)
	}
	if err := unix.Mount("victim", victim, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(victim, 0) })
	write(t, filepath.Join(victim, "file"))
	if err := m.Detach(launcher, "backup-1", true); err != nil {
		t.Errorf("detach: %v", err)
	}
	if !exists(filepath.Join(victim, "file")) {
		t.Error("the link was followed: the victim was unmounted")
	}
	if err := m.Detach(launcher, "../sockets", true); !errors.Is(err, ErrUnsafePath) {
		t.Errorf("a path for a name: %v", err)
	}
	if err := m.Cover("../launcher-pod"); !errors.Is(err, ErrUnsafePath) {
		t.Errorf("a path for a pod: %v", err)
	}
}

func TestMount_refusesAReplacedUtilityDirectory(t *testing.T) {
	k, m := setUp(t)
	dir := layout.NodeUtilityDir(k.PodsDir, launcher)
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(t.TempDir(), dir); err != nil {
		t.Fatal(err)
	}
	if err := m.Cover(launcher); err == nil {
		t.Error("the link was followed")
	}
}

func TestPartialFiles_areRemovedThroughTheAttachment(t *testing.T) {
	k, m := setUp(t)
	claim := k.Claim(attachment, csi, "pv-1")
	outside := filepath.Join(t.TempDir(), "precious")
	write(t, outside)
	partial := filepath.Join(claim, "vm", "b1.partial")
	if err := os.MkdirAll(partial, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(claim, "vm", "b0"), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(partial, "root.qcow2"))
	if err := os.Symlink(filepath.Dir(outside), filepath.Join(partial, "escape")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := m.RemovePartial(onCSI("pv-1"), "vm/b1"); err != nil {
			t.Fatal(err)
		}
	}
	if exists(partial) || !exists(filepath.Join(claim, "vm", "b0")) || !exists(outside) {
		t.Error("too little or too much was removed")
	}
	if err := os.Symlink(filepath.Dir(outside), filepath.Join(claim, "linked")); err != nil {
		t.Fatal(err)
	}
	if err := m.RemovePartial(onCSI("pv-1"), "linked/precious"); err == nil {
		t.Error("a link out of the claim was followed")
	}
	for _, directory := range []string{"", ".", "..", "../x", "/x", "vm/"} {
		if err := m.RemovePartial(onCSI("pv-1"), directory); !errors.Is(err, ErrUnsafePath) {
			t.Errorf("%q: %v", directory, err)
		}
	}
}

// A target whose server is gone holds one thread, whatever is asked of it, and other targets work beside it.
func TestHungTarget_holdsUpItselfAlone(t *testing.T) {
	k, m := setUp(t)
	m.gate = newGate(2 * time.Second)
	view := k.Launcher(launcher)
	fail, _ := k.Hang(k.Claim(attachment, csi, "pv-hung"))
	claim := k.Claim(attachment, csi, "pv-1")
	if err := m.Cover(launcher); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if err := m.Attach(launcher, "backup-1", onCSI("pv-hung"), ""); !errors.Is(err, ErrNotResponding) {
			t.Fatalf("attach: %v", err)
		}
		if err := m.RemovePartial(onCSI("pv-hung"), "vm/b1"); !errors.Is(err, ErrNotResponding) {
			t.Fatalf("remove: %v", err)
		}
	}
	m.gate.mu.Lock()
	stuck := len(m.gate.calls)
	m.gate.mu.Unlock()
	if stuck != 1 {
		t.Errorf("%d calls are stuck, want 1", stuck)
	}
	if err := m.Attach(launcher, "backup-2", onCSI("pv-1"), ""); err != nil {
		t.Errorf("another target: %v", err)
	}
	write(t, filepath.Join(view, "backup-2", "file"))
	if !exists(filepath.Join(claim, "file")) {
		t.Error("the other target is not mounted")
	}
	// Calls end when the server's connection does, and then the target is asked again.
	fail()
	for i := 0; ; i++ {
		err := m.Attach(launcher, "backup-1", onCSI("pv-hung"), "")
		if err != nil && !errors.Is(err, ErrNotResponding) {
			break
		}
		if i == 100 {
			t.Fatalf("the stuck call does not end: %v", err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	if exists(filepath.Join(view, "backup-1", "vm")) {
		t.Error("the late call mounted the target")
	}
}

func TestDial_connectsOnlyToASocket(t *testing.T) {
	k, m := setUp(t)
	path := layout.NodeSocket(k.PodsDir, launcher)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, path)
	if _, err := m.Dial(context.Background(), launcher); !errors.Is(err, ErrUnsafePath) {
		t.Errorf("a file: %v", err)
	}
	os.Remove(path)
	victim := filepath.Join(t.TempDir(), "docker.sock")
	other, err := net.Listen("unix", victim)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := os.Symlink(victim, path); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Dial(context.Background(), launcher); !errors.Is(err, ErrUnsafePath) {
		t.Errorf("a link: %v", err)
	}
	os.Remove(path)
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	conn, err := m.Dial(context.Background(), launcher)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}

// A pod's emptyDir in memory is a mount point, and its pod chooses the name of its directory. The same goes for
// every other plugin that accepts volumes in pods.
func TestAttach_takesTheVolumesOwnPluginAlone(t *testing.T) {
	for _, plugin := range []string{"kubernetes.io~empty-dir", "kubernetes.io~projected", "kubernetes.io~nfs"} {
		k, m := setUp(t)
		k.Launcher(launcher)
		k.Claim(attachment, plugin, "pv-1")
		if err := m.Cover(launcher); err != nil {
			t.Fatal(err)
		}
		if err := m.Attach(launcher, "backup-1", onCSI("pv-1"), ""); !errors.Is(err, ErrNotAttached) {
			t.Errorf("a %s was taken for the claim: %v", plugin, err)
		}
		if err := m.RemovePartial(onCSI("pv-1"), "vm/b1"); !errors.Is(err, ErrNotAttached) {
			t.Errorf("%s: %v", plugin, err)
		}
	}
}
