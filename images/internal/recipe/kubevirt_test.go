package recipe

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/varvebackup/varve/images/internal/layer"
)

// newPeer returns KubeVirt's programs and files as test/peers builds them, with nothing in them.
func newPeer(t *testing.T) Peer {
	t.Helper()
	dir := t.TempDir()
	for name, mode := range map[string]fs.FileMode{"etc/libvirt/qemu.conf": 0o644, "etc/libvirt/hooks/qemu": 0o755} {
		path := filepath.Join(dir, "files", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	return Peer{Programs: dir, Config: "../../kubevirt"}
}

// entriesByName returns what matters of entries beside where their content comes from.
func entriesByName(entries []layer.Entry) map[string]layer.Entry {
	all := map[string]layer.Entry{}
	for _, e := range entries {
		e.Path = ""
		all[e.Name] = e
	}
	return all
}

func TestKubeVirtConfig(t *testing.T) {
	t.Parallel()
	k := &Kitchen{KubeVirt: newPeer(t)}
	entries, err := k.kubeVirtConfig()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]layer.Entry{
		"etc/group":              {Name: "etc/group", Mode: 0o644},
		"etc/passwd":             {Name: "etc/passwd", Mode: 0o644},
		"etc/libvirt/qemu.conf":  {Name: "etc/libvirt/qemu.conf", Mode: 0o644},
		"etc/libvirt/hooks":      {Name: "etc/libvirt/hooks", Mode: fs.ModeDir | 0o755, Owner: 107},
		"etc/libvirt/hooks/qemu": {Name: "etc/libvirt/hooks/qemu", Mode: 0o755, Owner: 107},
		"usr/sbin/virtqemud":     {Name: "usr/sbin/virtqemud", Mode: 0o755},
		"usr/libexec/virtqemud":  {Name: "usr/libexec/virtqemud", Mode: fs.ModeSymlink, Link: "../sbin/libvirtd"},
		"var/run":                {Name: "var/run", Mode: fs.ModeSymlink, Link: "../run"},
	}
	if diff := cmp.Diff(want, entriesByName(entries)); diff != "" {
		t.Error(diff)
	}
}

// Only virt-launcher-monitor has a capability, and only the programs that work on a node run as root.
func TestKubeVirtPrograms(t *testing.T) {
	t.Parallel()
	k := &Kitchen{KubeVirt: newPeer(t)}
	users := map[string]string{}
	for _, image := range kubeVirtPrograms {
		users[image.programs[0]] = image.user
		for name, e := range entriesByName(k.kubeVirtBinaries(image.programs)) {
			want := layer.Entry{Name: name, Mode: 0o755}
			if name == "usr/bin/virt-launcher-monitor" {
				want.Attributes = map[string]string{
					"security.capability": "\x01\x00\x00\x02\x00\x04" + strings.Repeat("\x00", 14),
				}
			}
			if diff := cmp.Diff(want, e, cmpopts.EquateEmpty()); diff != "" {
				t.Error(diff)
			}
		}
	}
	want := map[string]string{
		"virt-operator": "1001", "virt-api": "1001", "virt-controller": "1001",
		"virt-exportproxy": "1001", "virt-exportserver": "1001",
		"virt-handler": "", "virt-launcher": "",
	}
	if diff := cmp.Diff(want, users); diff != "" {
		t.Error(diff)
	}
}
