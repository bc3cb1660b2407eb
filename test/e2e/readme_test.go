//go:build e2e

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/varvebackup/varve/test/lab"
)

// TestReadme runs what the README tells a newcomer to try after the demo, word for word except the namespace.
func TestReadme(t *testing.T) {
	s := newScene(t, "readme")
	s.vm = "demo"
	s.boot(lab.Disk{Name: "data", Bytes: 128 * mib})
	s.target("backups", gib)
	s.tracker("nightly")
	root := filepath.Dir(cluster.build)
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	s.must(err)
	_, section, _ := strings.Cut(string(text), "\n## What to try next\n")
	section, _, found := strings.Cut(section, "\n## ")
	var script []string
	for line := range strings.Lines(section) {
		if command, ok := strings.CutPrefix(line, "    "); ok {
			script = append(script, strings.TrimSpace(command))
		}
	}
	if !found || len(script) < 5 {
		t.Fatalf("the README's section has the commands %q", script)
	}
	replace := strings.NewReplacer("varve-demo", s.Namespace, "/var/lib/varve-box/kubeconfig", cluster.kubeconfig)
	cmd := exec.CommandContext(t.Context(), "bash", "-euxc", replace.Replace(strings.Join(script, "\n")))
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	for _, want := range []string{"Running", "backup thursday done: Full", "pvcName", s.Namespace} {
		if !strings.Contains(string(out), want) {
			t.Errorf("%q is not in the output:\n%s", want, out)
		}
	}
}
