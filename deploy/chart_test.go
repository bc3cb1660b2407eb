//go:build controlplane

package deploy_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/varvebackup/varve/test/controlplane"
)

// helm is the program that `make helm` builds.
const helm = "../build/helm/bin/helm"

// newChart writes the chart with deploy/render, for images of a registry.
func (s *scripts) newChart() string {
	s.t.Helper()
	dir := s.t.TempDir()
	images, chart := filepath.Join(dir, "images.json"), filepath.Join(dir, "varve")
	const index = `{"varve": {"ref": "registry.example/varve:v1"}, "varve-launcher": {"ref": "registry.example/vl:v1"}}`
	if err := os.WriteFile(images, []byte(index), 0o600); err != nil {
		s.t.Fatal(err)
	}
	s.mustRun("", "go", "run", "./render", "-base", ".", "-images", images, "-chart", chart)
	return chart
}

// helm runs it for the namespace varve, which it makes where a release is installed. It does not wait: nothing runs
// here.
func (s *scripts) helm(args ...string) (string, error) {
	s.t.Helper()
	if args[0] == "install" {
		args = append(args, "--create-namespace")
	}
	return s.run("", helm, append(args, "--namespace", "varve")...)
}

func (s *scripts) mustHelm(args ...string) string {
	s.t.Helper()
	out, err := s.helm(args...)
	if err != nil {
		s.t.Fatalf("helm %v: %v\n%s", args, err, out)
	}
	return out
}

// refuses runs helm, which must say why it refuses and change nothing.
func (s *scripts) refuses(want string, args ...string) {
	s.t.Helper()
	before := s.versions()
	out, err := s.helm(args...)
	for _, want := range []string{"refused, and nothing was changed: ", want} {
		if err == nil || !strings.Contains(out, want) {
			s.t.Errorf("helm %v (%v) does not say %q:\n%s", args, err, want, out)
		}
	}
	if diff := cmp.Diff(before, s.versions()); diff != "" {
		s.t.Errorf("helm %v has changed the cluster: %s", args, diff)
	}
}

// What users have: a machine, a backup of it that Varve holds, and the password of a repository.
const usersObjects = `
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: web, namespace: default}
spec: {template: {spec: {domain: {memory: {guest: 64Mi}, devices: {}}}}}
---
apiVersion: harvesterhci.io/v1beta1
kind: VirtualMachineBackup
metadata: {name: monday, namespace: default, finalizers: [test.example/held]}
spec: {type: backup, source: {apiGroup: kubevirt.io, kind: VirtualMachine, name: web}}
---
apiVersion: v1
kind: Secret
metadata: {name: repository-password-1, namespace: varve}
`

// A release comes, changes and goes, and users keep what they have.
func TestHelm_keepsWhatUsersHave(t *testing.T) {
	t.Parallel()
	s := newScriptsIn(t, controlplane.StartEmpty)
	chart := s.newChart()
	s.mustHelm("install", "varve", chart)
	s.mustRun("", s.kubectl, "wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
	s.mustRun(usersObjects, s.kubectl, "create", "-f", "-")
	mine := func() string {
		const each = `{.kind}/{.metadata.name} {.metadata.uid} {.metadata.deletionTimestamp}{.spec}{"\n"}`
		return s.mustRun(usersObjects, s.kubectl, "get", "-f", "-", "-o", "jsonpath={range .items[*]}"+each+"{end}")
	}
	before := mine()
	// The controller puts its authority in.
	s.mustRun("", s.kubectl, "patch", "validatingwebhookconfiguration/varve-utility-volumes", "--type=json",
		"-p", `[{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": "`+authority+`"}]`)

	// The next version has another kind and another image.
	kinds := filepath.Join(chart, "templates", "kinds.yaml")
	text, err := os.ReadFile(kinds)
	if err != nil {
		t.Fatal(err)
	}
	const label = "    app.kubernetes.io/part-of: varve\n"
	next := strings.ReplaceAll(string(text), label, label+"    test.example/next: \"yes\"\n")
	if err := os.WriteFile(kinds, []byte(next), 0o600); err != nil {
		t.Fatal(err)
	}
	s.mustHelm("upgrade", "varve", chart, "--set", "images.varve.tag=v2")
	if diff := cmp.Diff(before, mine()); diff != "" {
		t.Errorf("after the upgrade: %s", diff)
	}
	for _, tt := range []struct{ object, field, want string }{
		{"crd/virtualmachines.kubevirt.io", `{.metadata.labels.test\.example/next}`, "yes"},
		{"deployment/varve-controller", "{.spec.template.spec.containers[0].image}", "registry.example/varve:v2"},
		{"validatingwebhookconfiguration/varve-utility-volumes", "{.webhooks[0].clientConfig.caBundle}", authority},
	} {
		got := s.mustRun("", s.kubectl, "get", "--namespace", "varve", tt.object, "-o", "jsonpath="+tt.field)
		if got != tt.want {
			t.Errorf("%s %s: %q, want %q", tt.object, tt.field, got, tt.want)
		}
	}

	out := s.mustHelm("uninstall", "varve")
	if !strings.Contains(out, "[CustomResourceDefinition] virtualmachines.kubevirt.io") {
		t.Errorf("uninstall does not say what stays:\n%s", out)
	}
	if diff := cmp.Diff(before, mine()); diff != "" {
		t.Errorf("after the removal: %s", diff)
	}
	left := s.mustRun("", s.kubectl, "get", "-A", "-o", "name", "clusterroles,clusterrolebindings,roles,services,"+
		"validatingwebhookconfigurations,validatingadmissionpolicies,deployments,daemonsets,storageclasses")
	if strings.Contains(left, "varve") {
		t.Errorf("left:\n%s", left)
	}
	// The kinds that stayed do not stand in the way of the next installation.
	s.mustHelm("install", "varve", chart)
	if diff := cmp.Diff(before, mine()); diff != "" {
		t.Errorf("after another installation: %s", diff)
	}
}

// authority is what a certificate looks like to the API server.
const authority = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk1JSUJoakNDCi0tLS0tRU5EIENFUlRJRklDQVRFLS0tLS0K"

// A release takes an installation of install.sh over, if it is told to.
func TestHelm_takesOverAnInstallation(t *testing.T) {
	t.Parallel()
	s := newScriptsIn(t, controlplane.StartEmpty)
	s.install()
	chart := s.newChart()
	before := s.mustRun("", s.kubectl, "get", "crd", "-o", "jsonpath={.items[*].metadata.uid}")
	if out, err := s.helm("install", "varve", chart); err == nil || !strings.Contains(out, "cannot be imported") {
		t.Errorf("it takes over what was not its own: %v\n%s", err, out)
	}
	s.mustHelm("install", "varve", chart, "--take-ownership")
	if after := s.mustRun("", s.kubectl, "get", "crd", "-o", "jsonpath={.items[*].metadata.uid}"); after != before {
		t.Errorf("kinds were replaced: %s, %s", before, after)
	}
}

// The chart refuses the clusters that install.sh refuses, and leaves KubeVirt as it is.
func TestHelm_besideKubeVirt(t *testing.T) {
	t.Parallel()
	s := newScriptsIn(t, controlplane.StartEmpty)
	chart := s.newChart()
	beside := []string{"install", "varve", chart, "--set", "profile=beside"}
	s.refuses("this cluster has no KubeVirt: set profile=own", beside...)

	s.installTheirs("kubevirt.io_kubevirts", "kubevirt.io_virtualmachines", "kubevirt.io_virtualmachineinstances")
	s.mustRun(kubevirtObjects, s.kubectl, "create", "-f", "-")
	s.refuses("update it to 1.8 or later", beside...)
	s.refuses("update it to 1.8 or later", "install", "varve", chart)
	s.installTheirs("backup.kubevirt.io_virtualmachinebackups", "backup.kubevirt.io_virtualmachinebackuptrackers")
	const keeps = "this cluster has KubeVirt (kubevirt/virt-operator), which keeps its machines"
	s.refuses(keeps+", and profile is own: set profile=beside", "install", "varve", chart)

	before := s.versions()
	s.mustHelm(beside...)
	theirs := func() string {
		return without(s.versions(), `"app.kubernetes.io/part-of":"varve"`)
	}
	if diff := cmp.Diff(before, theirs()); diff != "" {
		t.Errorf("KubeVirt's kinds have changed: %s", diff)
	}
	s.refuses("set profile=beside", "upgrade", "varve", chart, "--set", "profile=own")
	s.mustHelm("upgrade", "varve", chart, "--set", "profile=beside")

	// KubeVirt goes, but Varve does not take its place on the way.
	s.mustRun("", s.kubectl, "delete", "crd", "-l", "app.kubernetes.io/managed-by=virt-operator")
	s.mustRun("", s.kubectl, "delete", "-n", "kubevirt", "deployment/virt-operator")
	s.refuses("run helm uninstall varve --namespace varve first", "upgrade", "varve", chart, "--set", "profile=own")
	s.mustHelm("uninstall", "varve")
	s.mustHelm("install", "varve", chart)
	s.refuses("this cluster has no KubeVirt", "upgrade", "varve", chart, "--set", "profile=beside")

	// And it comes back.
	operator, _, _ := strings.Cut(kubevirtObjects, "---\napiVersion: v1\nkind: Pod")
	_, operator, _ = strings.Cut(operator, "---\n")
	s.mustRun(operator, s.kubectl, "create", "-f", "-")
	s.refuses("Varve with a runtime of its own", "upgrade", "varve", chart)
	s.refuses("Varve with a runtime of its own", "upgrade", "varve", chart, "--set", "profile=beside")
}

// Kinds of Velero's and of Longhorn's are neither taken over nor removed, and the store is not there beside Longhorn's.
func TestHelm_leavesTheKindsOfOthers(t *testing.T) {
	t.Parallel()
	s := newScriptsIn(t, controlplane.StartEmpty)
	chart := s.newChart()
	for _, file := range []string{"velero.io_datauploads", "longhorn.io_backingimages"} {
		text, err := os.ReadFile(filepath.Join("crd", file+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		theirs := strings.Replace(string(text), "app.kubernetes.io/part-of: varve", "component: velero", 1)
		s.mustRun(theirs, s.kubectl, "create", "-f", "-")
	}
	before := s.versions()
	out := s.mustHelm("install", "varve", chart)
	for _, want := range []string{
		"these kinds of it stay as they are: datauploads.velero.io\n",
		"Varve's store of images is not installed: backingimages.longhorn.io\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("install does not say %q:\n%s", want, out)
		}
	}
	theirs := func() string {
		return without(s.versions(), `"app.kubernetes.io/part-of":"varve"`)
	}
	if diff := cmp.Diff(before, theirs()); diff != "" {
		t.Errorf("their kinds have changed: %s", diff)
	}
	sets := s.mustRun("", s.kubectl, "-nvarve", "get", "daemonsets", "-o", "name")
	if sets != "daemonset.apps/varve-handler\n" {
		t.Errorf("daemon sets: %s", sets)
	}
	s.mustHelm("uninstall", "varve")
	if diff := cmp.Diff(before, theirs()); diff != "" {
		t.Errorf("their kinds have changed: %s", diff)
	}
}

// Somebody replaces a kind of the release, with all that Helm has written on it. Helm neither deletes it, with all its
// objects, nor changes it back.
func TestHelm_keepsKindsThatSomebodyReplaced(t *testing.T) {
	t.Parallel()
	s := newScriptsIn(t, controlplane.StartEmpty)
	chart := s.newChart()
	s.mustHelm("install", "varve", chart)
	s.mustRun("", s.kubectl, "wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
	s.mustRun(movements, s.kubectl, "create", "-f", "-")
	text, err := os.ReadFile("crd/velero.io_datauploads.yaml")
	if err != nil {
		t.Fatal(err)
	}
	theirs := strings.Replace(string(text), "app.kubernetes.io/part-of: varve", "component: velero", 1)
	theirs = strings.Replace(theirs, "    - du\n", "    - du\n    - theirs\n", 1)
	s.mustRun(theirs, s.kubectl, "replace", "-f", "-")
	look := func() string {
		const fields = "{.metadata.uid} {.metadata.labels.component} {.metadata.deletionTimestamp} {.spec}"
		const objects = "{.items[*].metadata.uid}"
		return s.mustRun("", s.kubectl, "get", "crd/datauploads.velero.io", "-o", "jsonpath="+fields) +
			s.mustRun("", s.kubectl, "-nvelero", "get", "datauploads.velero.io", "-o", "jsonpath="+objects)
	}
	before := look()
	for range 2 { // the second one has the first one's work before it
		s.mustHelm("upgrade", "varve", chart, "--set", "present={velero}")
		if diff := cmp.Diff(before, look()); diff != "" {
			t.Errorf("the kind has changed: %s", diff)
		}
	}
	s.mustHelm("uninstall", "varve")
	if diff := cmp.Diff(before, look()); diff != "" {
		t.Errorf("the kind has changed: %s", diff)
	}
}

// What would break or never start is refused before anything changes.
func TestHelm_refusesClustersItDoesNotFit(t *testing.T) {
	t.Parallel()
	s := newScriptsIn(t, controlplane.StartEmpty)
	chart := s.newChart()
	s.refuses("no kind ServiceMonitor", "install", "varve", chart, "--set", "monitoring=true")
	s.mustRun("", s.kubectl, "create", "namespace", "varve")
	const level = "pod-security.kubernetes.io/enforce="
	s.mustRun("", s.kubectl, "label", "namespace", "varve", level+"baseline")
	s.refuses(level+"baseline", "install", "varve", chart)
	s.mustRun("", s.kubectl, "label", "--overwrite", "namespace", "varve", level+"privileged")
	s.mustHelm("install", "varve", chart)
	s.refuses("Varve's store of images and volumes runs here", "upgrade", "varve", chart, "--set", "present={longhorn}")
}
