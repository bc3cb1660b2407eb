package disk

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// system makes a directory tree with these files and links.
func system(t *testing.T, files, links map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range links {
		path := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.Symlink(to, path)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestDeviceIdentity(t *testing.T) {
	t.Parallel()
	root := system(t, map[string]string{
		"sys/devices/pci/block/sda/size":            "1",
		"sys/devices/pci/block/sda/sda2/partition":  "2\n",
		"sys/devices/virt/block/vda/serial":         " PVC 123\n",
		"sys/devices/virt/block/vda/vda1/partition": "1\n",
		"sys/devices/virtual/block/loop0/size":      "1",
		"sys/devices/virtual/block/dm-0/dm/uuid":    "LVM-abc\n",
		"sys/devices/nvme/block/nvme0n1/wwid":       "eui.0025\n",
	}, map[string]string{
		"sys/dev/block/8:0":                 "../../devices/pci/block/sda",
		"sys/dev/block/8:2":                 "../../devices/pci/block/sda/sda2",
		"sys/dev/block/252:0":               "../../devices/virt/block/vda",
		"sys/dev/block/252:1":               "../../devices/virt/block/vda/vda1",
		"sys/dev/block/7:0":                 "../../devices/virtual/block/loop0",
		"sys/dev/block/253:0":               "../../devices/virtual/block/dm-0",
		"sys/dev/block/259:0":               "../../devices/nvme/block/nvme0n1",
		"dev/disk/by-id/ata-X_1":            "../../sda",
		"dev/disk/by-id/wwn-0x5":            "../../sda",
		"dev/disk/by-id/lvm-pv-uuid-copied": "../../loop0",
		"dev/disk/by-id/wwn-0x5-part2":      "../../sda2",
		"dev/disk/by-id/wwn-0x5-part1":      "../../sda1",
	})
	for _, c := range []struct {
		major, minor uint32
		want         identity
	}{
		{8, 0, identity{"device:wwn-0x5", true}},
		{8, 2, identity{"device:wwn-0x5-part2", true}},
		{252, 0, identity{"device:PVC_123", true}},
		{252, 1, identity{"device:PVC_123-part1", true}},
		{253, 0, identity{"device:LVM-abc", true}},
		{259, 0, identity{"device:eui.0025", true}},
		{7, 0, identity{"device:7:0", false}},
		{7, 9, identity{"device:7:9", false}},
	} {
		got, err := deviceIdentity(root, c.major, c.minor)
		if err != nil || got != c.want {
			t.Errorf("%d:%d: %+v, want %+v (%v)", c.major, c.minor, got, c.want, err)
		}
	}
}

func TestFileIdentity(t *testing.T) {
	t.Parallel()
	path, _ := sparseFile(t, mib)
	id := func(path string) string {
		got, err := pathIdentity(path)
		if err != nil || !got.certain {
			t.Fatalf("%+v, %v", got, err)
		}
		return got.name
	}
	before := id(path)
	if err := os.WriteFile(path, []byte("other content"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path, path+".moved"); err != nil {
		t.Fatal(err)
	}
	if got := id(path + ".moved"); got != before {
		t.Errorf("%s after a move, before it %s", got, before)
	}
	if err := errors.Join(os.Remove(path+".moved"), os.WriteFile(path, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if got := id(path); got == before {
		t.Errorf("%s is also another file's", got)
	}
}
