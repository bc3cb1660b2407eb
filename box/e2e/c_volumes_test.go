//go:build box

package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

const mib = 1 << 20

// allocated returns the disk space, in bytes, that a volume's file occupies.
func allocated(t *testing.T, volume, node string) int64 {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Stat(volumeFile(volume, node), &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

func volumeFile(volume, node string) string {
	return filepath.Join(dir.Volumes(), node, volume+".img")
}

// loops lists the loop devices whose files are volumes of the box.
func loops(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("losetup", "--list", "--noheadings", "--output", "NAME,BACK-FILE").CombinedOutput()
	if err != nil {
		t.Fatal(err)
	}
	var ours []string
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, dir.Volumes()+"/") {
			ours = append(ours, strings.TrimSpace(line))
		}
	}
	return strings.Join(ours, "\n")
}

// noLoops waits until kubelet has unstaged the volumes that no pod uses any more, which it does after the pod is gone.
func noLoops(t *testing.T) {
	t.Helper()
	eventually(t, "the loop devices to be detached", func() error {
		if l := loops(t); l != "" {
			return errors.New(l)
		}
		return nil
	})
}

func TestFilesystemVolume(t *testing.T) {
	claim(t, "files", "", "128Mi", corev1.PersistentVolumeFilesystem)
	start(t, probePod("writer", "node2", withClaim("files", corev1.PersistentVolumeFilesystem)))
	volume := boundVolume(t, "files")
	kept := probe(t, "writer", "fill", "/data/kept", fmt.Sprint(8*mib))
	probe(t, "writer", "fill", "/data/dropped", fmt.Sprint(64*mib))

	if out, err := kubectl("exec", "writer", "--", "/probe", "fill", "/data/huge", fmt.Sprint(256*mib)); err == nil {
		t.Errorf("256 MiB fit into 128 MiB: %s", out)
	} else if !strings.Contains(err.Error(), "no space left on device") {
		t.Errorf("a full volume says %v", err)
	}
	full := allocated(t, volume, "node2")
	probe(t, "writer", "remove", "/data/huge")
	probe(t, "writer", "remove", "/data/dropped")
	eventually(t, "the trimmed space to return to the machine", func() error {
		if now := allocated(t, volume, "node2"); now > full-90*mib {
			return fmt.Errorf("the file takes %d bytes, after %d", now, full)
		}
		return nil
	})

	stop(t, "writer")
	noLoops(t)
	start(t, probePod("reader", "node2", withClaim("files", corev1.PersistentVolumeFilesystem)))
	if got := probe(t, "reader", "sum", "/data/kept", fmt.Sprint(8*mib)); got != kept {
		t.Errorf(wrongData+"the next pod reads %s, not %s", got, kept)
	}
	stop(t, "reader")
	unclaim(t, "files")
	if _, err := os.Stat(volumeFile(volume, "node2")); !os.IsNotExist(err) {
		t.Errorf("the file of the deleted volume is still there (%v)", err)
	}
}

func TestBlockVolume(t *testing.T) {
	claim(t, "device", "", "32Mi", corev1.PersistentVolumeBlock)
	start(t, probePod("writer", "node1", withClaim("device", corev1.PersistentVolumeBlock)))
	volume := boundVolume(t, "device")
	if got := probe(t, "writer", "size", "/dev/data"); got != fmt.Sprint(32*mib) {
		t.Errorf("the device has %s bytes", got)
	}
	want := probe(t, "writer", "fill", "/dev/data", fmt.Sprint(32*mib))
	stop(t, "writer")
	noLoops(t)
	start(t, probePod("reader", "node1", withClaim("device", corev1.PersistentVolumeBlock)))
	if got := probe(t, "reader", "sum", "/dev/data", fmt.Sprint(32*mib)); got != want {
		t.Errorf(wrongData+"the next pod reads %s, not %s", got, want)
	}
	stop(t, "reader")
	unclaim(t, "device")
	if _, err := os.Stat(volumeFile(volume, "node1")); !os.IsNotExist(err) {
		t.Errorf("the file of the deleted volume is still there (%v)", err)
	}
}

func TestImmediateClass(t *testing.T) {
	claim(t, "early", "box-immediate", "16Mi", corev1.PersistentVolumeFilesystem)
	volume := boundVolume(t, "early") // without any pod
	if _, err := os.Stat(volumeFile(volume, "node1")); err != nil {
		t.Error(err)
	}
}
