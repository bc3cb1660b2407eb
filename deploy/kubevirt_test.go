//go:build controlplane

package deploy_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/varvebackup/varve/test/controlplane"
)

// What a cluster with KubeVirt has: its operator, kinds that the operator labels, a machine and its launcher.
const kubevirtObjects = `
apiVersion: v1
kind: Namespace
metadata: {name: kubevirt}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: virt-operator, namespace: kubevirt, labels: {kubevirt.io: virt-operator}}
spec:
  selector: {matchLabels: {kubevirt.io: virt-operator}}
  template:
    metadata: {labels: {kubevirt.io: virt-operator}}
    spec: {containers: [{name: virt-operator, image: virt-operator}]}
---
apiVersion: v1
kind: Pod
metadata: {name: virt-launcher-theirs, namespace: default, labels: {kubevirt.io: virt-launcher}}
spec: {automountServiceAccountToken: false, containers: [{name: compute, image: compute}]}
---
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: theirs, namespace: default}
spec: {template: {spec: {domain: {memory: {guest: 64Mi}, devices: {}}}}}
`

// scripts runs the scripts of an installation against a real API server.
type scripts struct {
	t                   *testing.T
	kubectl, kubeconfig string
}

// newScripts is for a control plane that has Varve's kinds.
func newScripts(t *testing.T) *scripts {
	t.Helper()
	return newScriptsIn(t, func() (*controlplane.Cluster, error) { return controlplane.Start(t.Context()) })
}

// newScriptsIn is for a control plane that start has started.
func newScriptsIn(t *testing.T, start func() (*controlplane.Cluster, error)) *scripts {
	t.Helper()
	cluster, err := start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Stop(); err != nil {
			t.Error(err)
		}
	})
	kubectl, kubeconfig := programs(t, cluster)
	playNamespaceController(t, cluster)
	return &scripts{t: t, kubectl: kubectl, kubeconfig: kubeconfig}
}

func (s *scripts) run(stdin, name string, args ...string) (string, error) {
	s.t.Helper()
	c := exec.CommandContext(s.t.Context(), name, args...)
	c.Env = append(os.Environ(), "KUBECONFIG="+s.kubeconfig, "KUBECTL="+s.kubectl, "UNINSTALL_TIMEOUT=5s", "INSTALL_TIMEOUT=1s")
	c.Stdin = strings.NewReader(stdin)
	out, err := c.CombinedOutput()
	return string(out), err
}

func (s *scripts) mustRun(stdin, name string, args ...string) string {
	s.t.Helper()
	out, err := s.run(stdin, name, args...)
	if err != nil {
		s.t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return out
}

// versions are the objects that Varve would change, with what changes when they do.
func (s *scripts) versions() string {
	s.t.Helper()
	return s.mustRun("", s.kubectl, "get", "crd", "-o",
		`jsonpath={range .items[*]}{.kind}/{.metadata.name} {.metadata.uid} {.metadata.generation} {.metadata.labels} {.metadata.deletionTimestamp}{"\n"}{end}`)
}

func TestKubeVirt_isNeitherReplacedNorRemoved(t *testing.T) {
	t.Parallel()
	s := newScriptsIn(t, controlplane.StartEmpty)
	s.installTheirs("kubevirt.io_kubevirts", "kubevirt.io_virtualmachines", "kubevirt.io_virtualmachineinstances")
	s.mustRun(kubevirtObjects, s.kubectl, "create", "-f", "-")
	before := s.versions()

	out, err := s.run("", "./install.sh", "deploy")
	if diff := cmp.Diff(before, s.versions()); diff != "" {
		t.Errorf("the cluster has changed: %s", diff)
	}
	const refused = "refused, and nothing was changed"
	for _, want := range []string{refused, "virtualmachinebackups.backup.kubevirt.io", "docs/quickstart-host.md"} {
		if err == nil || !strings.Contains(out, want) {
			t.Errorf("install (%v) does not say %q:\n%s", err, want, out)
		}
	}
	out = s.mustRun("", "./uninstall.sh")
	if !strings.Contains(out, "stay with all their objects: ") {
		t.Errorf("uninstall does not say what stays:\n%s", out)
	}
	s.mustRun("", s.kubectl, "get", "virtualmachine/theirs", "pod/virt-launcher-theirs")
	if diff := cmp.Diff(before, s.versions()); diff != "" {
		t.Errorf("the cluster has changed: %s", diff)
	}

	// The operator alone would bring the kinds back.
	s.mustRun("", s.kubectl, "delete", "crd", "--all")
	if out, err := s.run("", "./install.sh", "deploy"); err == nil || !strings.Contains(out, refused) {
		t.Errorf("with the operator alone: %v\n%s", err, out)
	}
	// Without KubeVirt the way is free; here nothing runs, which the installation notices. It is free once more for the next version.
	s.mustRun("", s.kubectl, "delete", "-n", "kubevirt", "deployment/virt-operator")
	if out, err := s.run("", "./install.sh", "deploy"); err == nil || !strings.Contains(out, "not ready within 1s") {
		t.Errorf("without KubeVirt: %v\n%s", err, out)
	}
	// It is free for the next version as well, also over one that did not label its kinds yet.
	s.mustRun("", s.kubectl, "label", "crd", "virtualmachines.kubevirt.io", "app.kubernetes.io/part-of-")
	if out, err := s.run("", "./install.sh", "deploy"); err == nil || !strings.Contains(out, "not ready within 1s") {
		t.Errorf("over an older version: %v\n%s", err, out)
	}
}

// installTheirs installs kinds of KubeVirt's.
func (s *scripts) installTheirs(files ...string) {
	s.t.Helper()
	for _, file := range files {
		crd, err := os.ReadFile(filepath.Join("crd", file+".yaml"))
		if err != nil {
			s.t.Fatal(err)
		}
		theirs := bytes.Replace(crd, []byte("app.kubernetes.io/part-of: varve"),
			[]byte("app.kubernetes.io/managed-by: virt-operator"), 1)
		if bytes.Equal(theirs, crd) {
			s.t.Fatal("Varve's kinds have no label: this test does not test anything")
		}
		s.mustRun(string(theirs), s.kubectl, "create", "-f", "-")
	}
	s.mustRun("", s.kubectl, "wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
}

// Beside KubeVirt, an installation and its removal leave KubeVirt's kinds and machines as they are.
func TestBeside_leavesKubeVirtAsItIs(t *testing.T) {
	t.Parallel()
	s := newScriptsIn(t, controlplane.StartEmpty)
	s.installTheirs("kubevirt.io_kubevirts", "kubevirt.io_virtualmachines", "kubevirt.io_virtualmachineinstances",
		"backup.kubevirt.io_virtualmachinebackups", "backup.kubevirt.io_virtualmachinebackuptrackers")
	s.mustRun(kubevirtObjects, s.kubectl, "create", "-f", "-")
	before := s.versions()
	theirs := func() string {
		all := ""
		for line := range strings.Lines(s.versions()) {
			if strings.Contains(line, ".kubevirt.io ") {
				all += line
			}
		}
		return all
	}
	for range 2 { // the second one brings it up to date
		out, err := s.run("", "./install.sh", "deploy", "deploy/box/kubevirt.yaml")
		for _, want := range []string{
			"kubevirt/virt-operator", "installed beside it", "not ready within 1s",
			"feature gate Snapshot is off, and backups of type snapshot and of machines that are not tracked fail",
			"feature gate VMExport is off",
		} {
			if err == nil || !strings.Contains(out, want) {
				t.Errorf("install (%v) does not say %q:\n%s", err, want, out)
			}
		}
	}
	if diff := cmp.Diff(before, theirs()); diff != "" {
		t.Errorf("KubeVirt's kinds have changed: %s", diff)
	}
	args := s.mustRun("", s.kubectl, "-n", "varve", "get", "deployment", "varve-controller", "-o", "jsonpath={..args}")
	if !strings.Contains(args, `"--beside-kubevirt"`) {
		t.Errorf("the controller has %s", args)
	}
	for _, kind := range []string{"daemonset/varve-handler", "deployment/varve-exportproxy"} {
		if out, err := s.run("", s.kubectl, "-n", "varve", "get", kind); err == nil {
			t.Errorf("%s is there: %s", kind, out)
		}
	}
	configurations := s.mustRun("", s.kubectl, "get", "kubevirts", "--all-namespaces")
	if !strings.Contains(configurations, "No resources found") {
		t.Errorf("a configuration was made: %s", configurations)
	}
	s.mustRun("", "./uninstall.sh")
	s.mustRun("", s.kubectl, "get", "virtualmachine/theirs", "pod/virt-launcher-theirs")
	if diff := cmp.Diff(before, s.versions()); diff != "" {
		t.Errorf("the cluster has changed: %s", diff)
	}
}

// An installation never replaces one of the other profile.
func TestBeside_refusesTheOtherProfile(t *testing.T) {
	t.Parallel()
	s := newScriptsIn(t, controlplane.StartEmpty)
	if out, err := s.run("", "./install.sh", "deploy"); err == nil || !strings.Contains(out, "not ready within 1s") {
		t.Fatalf("install: %v\n%s", err, out)
	}
	operator, _, _ := strings.Cut(kubevirtObjects, "---\napiVersion: v1\nkind: Pod")
	s.mustRun(operator, s.kubectl, "create", "-f", "-")
	before := s.versions()
	out, err := s.run("", "./install.sh", "deploy")
	if err == nil || !strings.Contains(out, "Varve with a runtime of its own") {
		t.Errorf("KubeVirt comes after Varve: %v\n%s", err, out)
	}
	if diff := cmp.Diff(before, s.versions()); diff != "" {
		t.Errorf("the cluster has changed: %s", diff)
	}
}

// A cluster that cannot be asked is not taken for one without KubeVirt.
func TestScripts_stopWhenTheClusterCannotBeAsked(t *testing.T) {
	t.Parallel()
	kubectl := filepath.Join(t.TempDir(), "kubectl")
	log := kubectl + ".log"
	script := "#!/bin/sh\nprintf '%s\\n' \"$*\" >>" + log + "\ncase $1 in get) exit 1 ;; esac\n"
	if err := os.WriteFile(kubectl, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	s := &scripts{t: t, kubectl: kubectl}
	for _, args := range [][]string{{"./install.sh", "deploy"}, {"./uninstall.sh"}} {
		if out, err := s.run("", args[0], args[1:]...); err == nil {
			t.Errorf("%v: no error\n%s", args, out)
		}
	}
	asked, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(asked)) {
		if !strings.HasPrefix(line, "get ") {
			t.Errorf("it went on: kubectl %s", line)
		}
	}
}
