//go:build root

package mount

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/layout"
)

// ownerOf returns the user, group and permissions of what is at the path.
func ownerOf(t *testing.T, path string) (uid, gid uint32, mode os.FileMode) {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	st := info.Sys().(*syscall.Stat_t)
	return st.Uid, st.Gid, info.Mode().Perm()
}

// writeAsLauncher writes a file with the rights of the launcher's user.
func writeAsLauncher(path string) error {
	return asLauncher(func() error { return os.WriteFile(path, []byte("data"), 0o600) })
}

func TestAttach_showsTheMachinesDirectoryAlone(t *testing.T) {
	k, m := setUp(t)
	view := k.Launcher(launcher)
	claim := k.Claim(attachment, csi, "pv-1")
	for _, other := range []string{"other-vm", "vm2"} {
		if err := os.Mkdir(filepath.Join(claim, other), 0o777); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(claim, other, "backup"))
	}
	if err := m.Cover(launcher); err != nil {
		t.Fatal(err)
	}
	for range 2 { // it is idempotent
		if err := m.Attach(launcher, "backup-1", onCSI("pv-1"), "vm"); err != nil {
			t.Fatal(err)
		}
	}
	volume := filepath.Join(view, "backup-1")
	if err := writeAsLauncher(filepath.Join(volume, "vm", "file")); err != nil {
		t.Fatalf("the launcher cannot write: %v", err)
	}
	if !exists(filepath.Join(claim, "vm", "file")) {
		t.Error("what the launcher writes is not on the claim")
	}
	if entries, err := os.ReadDir(volume); err != nil || len(entries) != 1 || entries[0].Name() != "vm" {
		t.Errorf("the launcher sees %v %v", entries, err)
	}
	// The parent of the mount's root is the mount point's.
	dir, err := os.Open(filepath.Join(volume, "vm"))
	if err != nil {
		t.Fatal(err)
	}
	for _, other := range []string{"../other-vm", "../vm2", "../../other-vm"} {
		if fd, err := unix.Openat(int(dir.Fd()), other, unix.O_PATH, 0); !errors.Is(err, unix.ENOENT) {
			t.Errorf("the launcher opens %s: %d, %v", other, fd, err)
		}
	}
	if err := m.Detach(launcher, "backup-1", false); !errors.Is(err, ErrBusy) {
		t.Errorf("busy: %v", err)
	}
	if err := dir.Close(); err != nil {
		t.Fatal(err)
	}
	if names, err := m.Names(launcher); err != nil || !slices.Equal(names, []string{"backup-1"}) {
		t.Errorf("names %v %v", names, err)
	}
	for range 2 {
		if err := m.Detach(launcher, "backup-1", false); err != nil {
			t.Fatal(err)
		}
	}
	if exists(volume) {
		t.Error("the launcher still sees the mount point")
	}
	if err := m.Uncover(launcher); err != nil {
		t.Fatal(err)
	}
	if all, err := m.All(); err != nil || len(all) != 0 {
		t.Errorf("left mounted: %v %v", all, err)
	}
}

// A descriptor that outlives a lazy unmount leads to the machine's own backups and to nothing else.
func TestDetach_lazyLeavesTheMachinesDirectoryAtMost(t *testing.T) {
	k, m := setUp(t)
	view := k.Launcher(launcher)
	claim := k.Claim(attachment, csi, "pv-1")
	if err := os.Mkdir(filepath.Join(claim, "other-vm"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(m.Cover(launcher), m.Attach(launcher, "backup-1", onCSI("pv-1"), "vm")); err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(filepath.Join(view, "backup-1", "vm"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	if err := m.Detach(launcher, "backup-1", true); err != nil {
		t.Fatal(err)
	}
	if exists(filepath.Join(view, "backup-1")) {
		t.Error("the launcher still sees the mount point")
	}
	for _, other := range []string{"../other-vm", "../../other-vm"} {
		if fd, err := unix.Openat(int(dir.Fd()), other, unix.O_PATH, 0); !errors.Is(err, unix.ENOENT) {
			t.Errorf("the launcher opens %s: %d, %v", other, fd, err)
		}
	}
}

func TestMachineDirectory_belongsToTheLauncher(t *testing.T) {
	for name, test := range map[string]struct {
		claim, directory os.FileMode
		// claimOwner owns the claim's root. There is a directory already if directory is set.
		claimOwner int
		wantUID    uint32
	}{
		"a claim that only root writes":                  {claim: 0o755, wantUID: 0},
		"a claim that the launcher may write":            {claim: 0o700, claimOwner: layout.LauncherUser, wantUID: layout.LauncherUser},
		"a directory that a launcher made that was root": {claim: 0o755, directory: 0o755, wantUID: 0},
		"a directory that only its owner enters":         {claim: 0o755, directory: 0o700, wantUID: 0},
	} {
		t.Run(name, func(t *testing.T) {
			k, m := setUp(t)
			view := k.Launcher(launcher)
			claim := k.Claim(attachment, csi, "pv-1")
			if err := errors.Join(os.Chmod(claim, test.claim), os.Chown(claim, test.claimOwner, test.claimOwner)); err != nil {
				t.Fatal(err)
			}
			at := filepath.Join(claim, "vm")
			if test.directory != 0 {
				if err := errors.Join(os.Mkdir(at, test.directory), os.Chmod(at, test.directory)); err != nil {
					t.Fatal(err)
				}
				write(t, filepath.Join(at, "yesterday"))
			}
			if err := errors.Join(m.Cover(launcher), m.Attach(launcher, "backup-1", onCSI("pv-1"), "vm")); err != nil {
				t.Fatal(err)
			}
			if uid, gid, mode := ownerOf(t, at); uid != test.wantUID || gid != layout.LauncherGroup || mode&0o002 != 0 {
				t.Errorf("user %d, group %d, %v", uid, gid, mode)
			}
			if err := writeAsLauncher(filepath.Join(view, "backup-1", "vm", "file")); err != nil {
				t.Errorf("the launcher cannot write: %v", err)
			}
			if err := writeAsLauncher(filepath.Join(view, "backup-1", "file")); err == nil {
				t.Error("the launcher writes beside its directory")
			}
		})
	}
}

func TestMachineDirectory_followsNoLink(t *testing.T) {
	for name, plant := range map[string]func(at string) error{
		"link": func(at string) error { return os.Symlink("other-vm", at) },
		"file": func(at string) error { return os.WriteFile(at, nil, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			k, m := setUp(t)
			k.Launcher(launcher)
			claim := k.Claim(attachment, csi, "pv-1")
			if err := errors.Join(os.Mkdir(filepath.Join(claim, "other-vm"), 0o700), plant(filepath.Join(claim, "vm")), m.Cover(launcher)); err != nil {
				t.Fatal(err)
			}
			if err := m.Attach(launcher, "backup-1", onCSI("pv-1"), "vm"); !errors.Is(err, ErrUnsafePath) {
				t.Errorf("attached: %v", err)
			}
			if uid, gid, _ := ownerOf(t, filepath.Join(claim, "other-vm")); uid != 0 || gid != 0 {
				t.Errorf("another machine's directory was given to %d:%d", uid, gid)
			}
		})
	}
	k, m := setUp(t)
	k.Launcher(launcher)
	k.Claim(attachment, csi, "pv-1")
	if err := m.Cover(launcher); err != nil {
		t.Fatal(err)
	}
	for _, machine := range []string{"..", ".", "a/b"} {
		if err := m.Attach(launcher, "backup-1", onCSI("pv-1"), machine); !errors.Is(err, ErrUnsafePath) {
			t.Errorf("machine %q: %v", machine, err)
		}
	}
}

// What a launcher that was root has left on its claims is usable for one that is not: the disk, the overlays and their
// directory.
func TestAdmit_letsTheLauncherUseWhatRootLeft(t *testing.T) {
	k, m := setUp(t)
	claim := k.Claim(launcher, csi, "pv-disk")
	victim := filepath.Join(t.TempDir(), "victim")
	write(t, victim)
	for _, dir := range []string{"cbt", "cbt/deeper"} {
		if err := os.Mkdir(filepath.Join(claim, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	files := []string{"disk.img", "cbt/root.qcow2", "cbt/root.json"}
	for _, name := range files {
		write(t, filepath.Join(claim, name))
	}
	if err := errors.Join(
		os.Symlink(victim, filepath.Join(claim, "link")),
		os.Chmod(filepath.Join(claim, "disk.img"), os.ModeSetgid|0o600),
		os.WriteFile(filepath.Join(claim, "open"), nil, 0o600), os.Chmod(filepath.Join(claim, "open"), 0o666),
	); err != nil {
		t.Fatal(err)
	}
	for range 2 { // it is idempotent
		if err := m.Admit(Source{Pod: launcher, Plugin: csi, Volume: "pv-disk"}); err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.Open(claim) // the launcher's user cannot enter the directories around it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	for _, name := range files {
		err := asLauncher(func() error {
			fd, err := unix.Openat(int(root.Fd()), name, unix.O_RDWR, 0)
			_ = unix.Close(fd)
			return err
		})
		if uid, gid, mode := ownerOf(t, filepath.Join(claim, name)); err != nil || uid != 0 || gid != layout.LauncherGroup || mode&0o007 != 0 {
			t.Errorf("%s: user %d, group %d, %v: %v", name, uid, gid, mode, err)
		}
	}
	for _, name := range []string{"disk.img.new", "cbt/root.new"} {
		if err := writeAsLauncher(filepath.Join(procPath(root), name)); err != nil {
			t.Errorf("the launcher cannot create %s: %v", name, err)
		}
	}
	for _, path := range []string{victim, filepath.Join(claim, "open")} {
		if _, gid, _ := ownerOf(t, path); gid != 0 {
			t.Errorf("%s was changed", path)
		}
	}
	if info, err := os.Stat(filepath.Join(claim, "disk.img")); err != nil || info.Mode()&(os.ModeSetgid|os.ModeSetuid) != 0 {
		t.Errorf("the disk's mode is %v, %v", info.Mode(), err)
	}
	if err := m.Admit(Source{Pod: launcher, Plugin: csi, Volume: "pv-other"}); !errors.Is(err, ErrNotAttached) {
		t.Errorf("a volume that the pod does not have: %v", err)
	}
}

// A claim that is mounted read-only, as for a disk that guests share, is no obstacle.
func TestAdmit_leavesWhatItCannotChange(t *testing.T) {
	k, m := setUp(t)
	claim := k.Claim(launcher, csi, "pv-disk")
	write(t, filepath.Join(claim, "disk.img"))
	if err := unix.Mount("", claim, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if err := m.Admit(Source{Pod: launcher, Plugin: csi, Volume: "pv-disk"}); err != nil {
		t.Error(err)
	}
}
