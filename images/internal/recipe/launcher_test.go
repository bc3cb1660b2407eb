package recipe_test

import (
	"os"
	"path/filepath"
	"testing"
)

func TestLauncherRootHasWhatVarveRuns(t *testing.T) {
	t.Parallel()
	k, _ := kitchen(t, sharedRoot(t), "", "")
	root, err := k.LauncherDir(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{
		"usr/sbin/libvirtd", "usr/bin/virsh", "usr/bin/qemu-system-x86_64", "usr/bin/qemu-img", "usr/bin/qemu-storage-daemon",
		"usr/sbin/mke2fs", "usr/sbin/e2fsck", "usr/bin/fallocate", "usr/bin/mount",
	} {
		if info, err := os.Stat(filepath.Join(root, program)); err != nil || info.Mode()&0o111 == 0 {
			t.Errorf("%s: %v, %v", program, info, err)
		}
	}
	for _, gone := range []string{"usr/share/man", "etc/machine-id", "var/lib/apt/lists/lock", "usr/bin/qemu-system-i386"} {
		if _, err := os.Lstat(filepath.Join(root, gone)); !os.IsNotExist(err) {
			t.Errorf("%s is still there: %v", gone, err)
		}
	}
	for _, name := range []string{"etc/libvirt/qemu.conf", "etc/libvirt/libvirtd.conf"} {
		got, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(filepath.Join("../../launcher", name))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != string(want) {
			t.Errorf("%s is not Varve's own", name)
		}
		// libvirtd takes a file that its user may not read for one that does not exist.
		if info, err := os.Stat(filepath.Join(root, name)); err != nil || info.Mode().Perm() != 0o644 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
}
