//go:build controlplane

package deploy_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/varvebackup/varve/test/controlplane"
)

// Objects of Velero's kinds: a volume that Varve has moved, one that it moves, and one that Velero's node agent moves.
const movements = `
apiVersion: v1
kind: Namespace
metadata: {name: velero}
---
apiVersion: velero.io/v2alpha1
kind: DataUpload
metadata: {name: moved, namespace: velero, finalizers: [test.example/theirs, varvebackup.io/data-mover, test.example/last]}
spec: {snapshotType: CSI, sourcePVC: data, datamover: varve, backupStorageLocation: default, sourceNamespace: app, operationTimeout: 10m0s}
status: {phase: Completed, snapshotID: varve1.disk.id.app}
---
apiVersion: velero.io/v2alpha1
kind: DataUpload
metadata: {name: moving, namespace: velero, finalizers: [varvebackup.io/data-mover]}
spec: {snapshotType: CSI, sourcePVC: data, datamover: varve, backupStorageLocation: default, sourceNamespace: app, operationTimeout: 10m0s}
status: {phase: InProgress}
---
apiVersion: velero.io/v2alpha1
kind: DataUpload
metadata: {name: theirs, namespace: velero, finalizers: [velero.io/data-upload-download-finalizer]}
spec: {snapshotType: CSI, sourcePVC: data, backupStorageLocation: default, sourceNamespace: app, operationTimeout: 10m0s}
status: {phase: InProgress}
---
apiVersion: velero.io/v1
kind: DeleteBackupRequest
metadata: {name: deleting, namespace: velero, finalizers: [velero.io/dm-delete-backup]}
spec: {backupName: b1}
status: {phase: InProgress}
`

// released are the movements after an uninstallation: name, finalizers, spec.cancel.
const released = `moved ["test.example/theirs","test.example/last"]
moving  true
theirs ["velero.io/data-upload-download-finalizer"]
`

// finalizersOfUploads lists name, finalizers and spec.cancel of all DataUploads.
func (s *scripts) finalizersOfUploads() string {
	s.t.Helper()
	out := s.mustRun("", s.kubectl, "-n", "velero", "get", "datauploads.velero.io", "-o",
		`jsonpath={range .items[*]}{.metadata.name} {.metadata.finalizers} {.spec.cancel}{"\n"}{end}`)
	lines := strings.Split(out, "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}

// install runs install.sh, which finds that nothing runs here: it has done everything else by then.
func (s *scripts) install() string {
	s.t.Helper()
	out, err := s.run("", "./install.sh", "deploy")
	if err == nil || !strings.Contains(out, "not ready within 1s") {
		s.t.Errorf("install: %v\n%s", err, out)
	}
	return out
}

// without returns the lines that contain none of the words.
func without(text string, words ...string) string {
	lines := slices.DeleteFunc(strings.SplitAfter(text, "\n"), func(line string) bool {
		return slices.ContainsFunc(words, func(word string) bool { return strings.Contains(line, word) })
	})
	return strings.Join(lines, "")
}

// installCRDs creates custom resource definitions that are not Varve's.
func (s *scripts) installCRDs(paths []string, err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, path := range paths {
		s.mustRun("", s.kubectl, "create", "-f", path)
	}
	s.mustRun("", s.kubectl, "wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
}

// longhornVolumes is a kind of Longhorn's, which has others of the names of Varve's, too.
const longhornVolumes = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: volumes.longhorn.io}
spec:
  group: longhorn.io
  names: {kind: Volume, plural: volumes}
  scope: Namespaced
  versions: [{name: v1beta2, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`

func TestVelero_keepsItsKindsAndObjects(t *testing.T) {
	t.Parallel()
	s := newScriptsIn(t, controlplane.StartEmpty)
	s.installCRDs(controlplane.VeleroCRDs(t.Context()))
	s.installCRDs(controlplane.SnapshotCRDs(t.Context()))
	s.mustRun(longhornVolumes, s.kubectl, "create", "-f", "-")
	before := s.versions()
	rights := []string{"-n", "varve", "role/varve-handler", "rolebinding/varve-handler"}
	// As an earlier version had it, whose handlers drove data movements.
	s.mustRun("", s.kubectl, "create", "namespace", "varve")
	s.mustRun("", s.kubectl, "-n", "varve", "create", "role", "varve-handler", "--verb=create", "--resource=pods")
	s.mustRun("", s.kubectl, "-n", "varve", "create", "rolebinding", "varve-handler", "--role=varve-handler",
		"--serviceaccount=varve:varve-handler")
	s.mustRun("", s.kubectl, append([]string{"get"}, rights...)...)

	out := s.install()
	if left := s.mustRun("", s.kubectl, append([]string{"get", "--ignore-not-found"}, rights...)...); left != "" {
		t.Errorf("handlers keep rights of an earlier version:\n%s", left)
	}
	for _, want := range []string{"this cluster has Velero", "datauploads.velero.io", "backupstoragelocations.velero.io"} {
		if !strings.Contains(out, want) {
			t.Errorf("install does not say %q:\n%s", want, out)
		}
	}
	if diff := cmp.Diff(before, without(s.versions(), "kubevirt.io", "harvesterhci.io", "varvebackup.io",
		"backingimages.longhorn.io", "backupbackingimages.longhorn.io", "nodes.longhorn.io",
		"instancemanagers.longhorn.io", "replicas.longhorn.io")); diff != "" {
		t.Errorf("install has changed kinds of others: %s", diff)
	}
	if left := s.mustRun("", s.kubectl, "-n", "varve", "get", "daemonset", "-o", "name"); strings.Contains(left, "store") ||
		!strings.Contains(out, "this cluster has Longhorn") {
		t.Errorf("in a cluster with Longhorn, install says %q and makes\n%s", out, left)
	}
	s.mustRun("", s.kubectl, "get", "vm,vmbackup", "--all-namespaces") // Varve's own kinds are there.

	s.mustRun(movements, s.kubectl, "create", "-f", "-")
	out = s.mustRun("", "./uninstall.sh")
	for _, want := range []string{
		"these kinds are not Varve's, and stay with all their objects: ", "datauploads.velero.io",
		"warning: datauploads.velero.io velero/moving did not end by itself",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("uninstall does not say %q:\n%s", want, out)
		}
	}
	if diff := cmp.Diff(before, s.versions()); diff != "" {
		t.Errorf("uninstall has changed kinds of others: %s", diff)
	}
	if diff := cmp.Diff(released, s.finalizersOfUploads()); diff != "" {
		t.Errorf("DataUploads: %s", diff)
	}
	// Nothing of Varve keeps Velero from deleting its objects.
	s.mustRun("", s.kubectl, "-n", "velero", "delete", "deletebackuprequests.velero.io/deleting", "dataupload/moving", "--timeout=30s")
}

func TestVelero_thatCameLaterKeepsTheKindsItUses(t *testing.T) {
	t.Parallel()
	s := newScripts(t)
	// Varve's kinds of an older version are brought up to date.
	s.mustRun("", s.kubectl, "patch", "crd", "datauploads.velero.io", "--type", "json", "-p", `[{"op":"remove","path":"/spec/names/shortNames"}]`)
	if out := s.install(); strings.Contains(out, "Velero") {
		t.Errorf("Velero is not here:\n%s", out)
	}
	s.mustRun("", s.kubectl, "get", "du,dd,bsl", "--all-namespaces")

	// Velero's installation leaves the kinds that are there, and creates the others.
	s.mustRun(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: backups.velero.io, labels: {component: velero}}
spec:
  group: velero.io
  names: {kind: Backup, plural: backups}
  scope: Namespaced
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`, s.kubectl, "create", "-f", "-")
	s.mustRun(movements, s.kubectl, "create", "-f", "-")
	before := without(s.versions(), "kubevirt.io", "harvesterhci.io", "varvebackup.io", "longhorn.io")
	out := s.mustRun("", "./uninstall.sh")
	if want := "Velero uses them: they stay with all their objects: backuprepositories.velero.io"; !strings.Contains(out, want) {
		t.Errorf("uninstall does not say %q:\n%s", want, out)
	}
	if diff := cmp.Diff(before, s.versions()); diff != "" {
		t.Errorf("kinds that Velero uses have changed, or others are left: %s", diff)
	}
	if diff := cmp.Diff(released, s.finalizersOfUploads()); diff != "" {
		t.Errorf("DataUploads: %s", diff)
	}

	// Kinds that Velero's own manifests were applied over are Velero's.
	s.mustRun("", s.kubectl, "label", "crd", "datadownloads.velero.io", "component=velero")
	if out := s.install(); !strings.Contains(out, "these kinds of it stay as they are: datadownloads.velero.io\n") {
		t.Errorf("install does not say what stays:\n%s", out)
	}
	// Without Velero, Varve's kinds go, and what nobody is left to finish goes with them.
	s.mustRun("", s.kubectl, "delete", "crd", "backups.velero.io")
	out = s.mustRun("", "./uninstall.sh")
	if want := "warning: datauploads.velero.io velero/theirs did not end by itself"; !strings.Contains(out, want) {
		t.Errorf("uninstall does not say %q:\n%s", want, out)
	}
	if left := s.mustRun("", s.kubectl, "get", "crd", "-o", "name"); left != "customresourcedefinition.apiextensions.k8s.io/datadownloads.velero.io\n" {
		t.Errorf("left behind: %s", left)
	}
}
