//go:build e2e

package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/varvebackup/varve/test/lab"
)

// TestReadme runs what the README tells a newcomer to try after the demo, word for word except the names of the namespace
// and the location, and without the machines of other tests, some of which are not backed up on purpose.
func TestReadme(t *testing.T) {
	s := newScene(t, "readme")
	s.vm = "demo"
	s.boot(lab.Disk{Name: "data", Bytes: 128 * mib})
	s.target("backups", gib)
	s.tracker("nightly")
	location, err := s.BucketLocation(t.Context(), "e2e-readme", os.Getenv("VARVE_BOX_DIR"))
	s.must(err)
	t.Cleanup(func() { s.must(location.Remove(context.WithoutCancel(t.Context()))) })
	script := s.commands("README.md", "What to try next")
	if len(script) < 5 {
		t.Fatalf("the README's section has the commands %q", script)
	}
	// Somebody who has followed the README has a schedule at its time already, and two must not be due together.
	replace := strings.NewReplacer(`"0 1 * * *"`, `"20 3 * * *"`, "varve status -A", "varve status -n "+s.Namespace, "varve-demo", s.Namespace, "--location demo", "--location "+location.Name, "/var/lib/varve-box/kubeconfig", cluster.kubeconfig)
	out := s.shell(replace.Replace(strings.Join(script, "\n")))
	for _, want := range []string{"Running", "backup saturday done: Full", " is ready: 1 disk", "pvcName", s.Namespace} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in the output:\n%s", want, out)
		}
	}
}

// commands returns the lines of a document's section that are commands: those that are indented, without the indentation.
func (s *scene) commands(file, section string) (script []string) {
	s.t.Helper()
	text, err := os.ReadFile(filepath.Join(filepath.Dir(cluster.build), file))
	s.must(err)
	_, rest, found := strings.Cut(string(text), "\n## "+section+"\n")
	if !found {
		s.t.Fatalf("%s has no section %q", file, section)
	}
	rest, _, _ = strings.Cut(rest, "\n## ")
	for line := range strings.Lines(rest) {
		if command, ok := strings.CutPrefix(line, "    "); ok {
			script = append(script, strings.TrimRight(command, "\n"))
		}
	}
	return script
}

// shell runs a script as a user would who has just built Varve, and returns what it wrote. It has ten minutes.
func (s *scene) shell(script string) string {
	s.t.Helper()
	root := filepath.Dir(cluster.build)
	ctx, cancel := context.WithTimeout(s.t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euxo", "pipefail", "-c", script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "PATH="+filepath.Join(cluster.build, "bin")+":"+filepath.Join(cluster.build, "kube", "bin")+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.t.Fatalf("%v:\n%s", err, out)
	}
	return string(out)
}
