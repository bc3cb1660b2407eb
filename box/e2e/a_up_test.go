//go:build box

package e2e

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/varvebackup/varve/box/internal/imagetar"
)

func TestUpWhenUpIsQuickAndChangesNothing(t *testing.T) {
	before := readState(t)
	within(t, 2*time.Second, func() { mustUp(t) })
	if after := readState(t); !reflect.DeepEqual(before, after) {
		t.Errorf("the box is another one: %+v, before %+v", after, before)
	}
}

func TestStatus(t *testing.T) {
	out := mustRun(t, "status")
	for _, want := range []string{"etcd", "kubelet", "csi", "API server: ready", dir.Kubeconfig()} {
		if !strings.Contains(out, want) {
			t.Errorf("status does not show %q:\n%s", want, out)
		}
	}
}

func TestLoadSkipsWhatIsThere(t *testing.T) {
	if out := loadProbe(t); !strings.Contains(out, "imported "+probeImage) {
		t.Errorf("the first load does not say that it imported: %q", out)
	}
	if out := loadProbe(t); out != "" {
		t.Errorf("the second load does something: %q", out)
	}
}

// A changed image takes over the name, and the old image is removed.
func TestLoadReplaces(t *testing.T) {
	before := imageIDs(t)
	if out := loadProbe(t, imagetar.File{Path: "more", Data: []byte("more"), Mode: 0o644}); !strings.Contains(out, "imported") {
		t.Errorf("a changed image is not imported: %q", out)
	}
	loadProbe(t)
	if after := imageIDs(t); after != before {
		t.Errorf("images pile up on the node: %s, before %s", after, before)
	}
}

// imageIDs lists the digests of everything that node1 calls an image.
func imageIDs(t *testing.T) string {
	t.Helper()
	var ids []string
	for line := range strings.Lines(mustRun(t, "exec", "node1", "--", "ctr", "-n", "k8s.io", "images", "ls")) {
		// REF TYPE DIGEST ...
		if f := strings.Fields(line); len(f) > 2 && strings.HasPrefix(f[2], "sha256:") {
			ids = append(ids, f[2])
		}
	}
	slices.Sort(ids)
	return strings.Join(slices.Compact(ids), " ")
}

func TestSecondNode(t *testing.T) {
	mustUp(t, "--nodes=2")
	if out := mustRun(t, "exec", "node2", "--", "ctr", "-n", "k8s.io", "images", "ls", "-q"); !strings.Contains(out, probeImage) {
		t.Errorf("the new node lacks an image that was loaded before: %s", out)
	}
	if out := mustRun(t, "exec", "node2", "--", "hostname"); strings.TrimSpace(out) != "node2" {
		t.Errorf("exec ran on %q, not on node2", out)
	}
}

// Every other test uses kubectl exec.
func TestLogs(t *testing.T) {
	start(t, probePod("logs", "node2"))
	eventually(t, "the log", func() error {
		out, err := kubectl("logs", "logs")
		if err == nil && !strings.Contains(out, "serving as logs") {
			err = fmt.Errorf("it reads %q", out)
		}
		return err
	})
}
