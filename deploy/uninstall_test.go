//go:build controlplane

package deploy_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/varvebackup/varve/test/controlplane"
)

const stuck = `
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: stuck, namespace: default, finalizers: [test.example/nobody-removes-this]}
spec: {template: {spec: {domain: {memory: {guest: 64Mi}, devices: {}}}}}
`

const kept = `
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: du-1, namespace: varve, labels: {varvebackup.io/kept-snapshot: key}}
spec: {source: {volumeSnapshotContentName: du-1}}
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: users, namespace: varve}
spec: {source: {volumeSnapshotContentName: users}}
`

const snapshots = `
apiVersion: snapshot.kubevirt.io/v1beta1
kind: VirtualMachineSnapshot
metadata: {name: s, namespace: default, finalizers: [snapshot.kubevirt.io/vmsnapshot-protection]}
spec: {source: {apiGroup: kubevirt.io, kind: VirtualMachine, name: vm}}
---
apiVersion: snapshot.kubevirt.io/v1beta1
kind: VirtualMachineSnapshotContent
metadata: {name: c, namespace: default, finalizers: [snapshot.kubevirt.io/vmsnapshotcontent-protection]}
spec: {virtualMachineSnapshotName: s, source: {}}
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata:
  name: machines
  namespace: default
  labels: {varvebackup.io/machine-snapshot-uid: "1"}
  ownerReferences: [{apiVersion: snapshot.kubevirt.io/v1beta1, kind: VirtualMachineSnapshotContent, name: c, uid: "1"}]
spec: {source: {persistentVolumeClaimName: root}}
`

// usedImage has the finalizer that the controller takes off when no copy is left.
const usedImage = `
apiVersion: longhorn.io/v1beta2
kind: BackingImage
metadata: {name: used, namespace: varve, finalizers: [longhorn.io]}
spec: {sourceType: upload}
`

// Nothing runs in this cluster: whatever has a finalizer stays until uninstall.sh loses its patience.
func TestUninstallLeavesNothing(t *testing.T) {
	t.Parallel()
	cluster, err := controlplane.Start(t.Context())
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
	run := func(stdin, name string, args ...string) string {
		t.Helper()
		c := exec.CommandContext(t.Context(), name, args...)
		c.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "KUBECTL="+kubectl, "UNINSTALL_TIMEOUT=10s")
		c.Stdin = strings.NewReader(stdin)
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %v: %v\n%s", name, args, err, out)
		}
		return string(out)
	}
	run("", kubectl, "apply", "--server-side", "--force-conflicts", "-k", ".")
	run("", kubectl, "apply", "--server-side", "--force-conflicts", "-k", "store")
	run(usedImage, kubectl, "create", "-f", "-")
	if err := cluster.InstallSnapshotKinds(t.Context()); err != nil {
		t.Fatal(err)
	}
	run(stuck, kubectl, "apply", "-f", "-")
	run(kept, kubectl, "apply", "-f", "-")
	run(snapshots, kubectl, "apply", "-f", "-")
	run("", kubectl, "-n", "varve", "create", "secret", "generic", "repository-password-default-1", "--from-literal=password=p")
	out := run("", "./uninstall.sh")
	if secrets := run("", kubectl, "-n", "varve", "get", "secrets", "-o", "name"); !strings.Contains(secrets, "secret/repository-password-default-1") ||
		!strings.Contains(out, "the namespace varve stays: it has the passwords of repositories") {
		t.Errorf("the password of a repository is gone: nobody can read the backups in it any more:\n%s", out)
	}
	if left := run("", kubectl, "-n", "varve", "get", "volumesnapshots", "-o", "name"); strings.TrimSpace(left) != "volumesnapshot.snapshot.storage.k8s.io/users" {
		t.Errorf("snapshots that are left: %s", left)
	}
	if owners := run("", kubectl, "-n", "default", "get", "volumesnapshots", "machines", "-o",
		"jsonpath=.{.metadata.ownerReferences}"); owners != "." {
		t.Errorf("the storage's snapshot of a machine goes with its owner: %s", owners)
	}
	run("", kubectl, "-n", "varve", "delete", "secret", "repository-password-default-1")
	if !strings.Contains(out, "warning: images that are left stay on the disks of their nodes") {
		t.Errorf("nothing is said of an image that could not be deleted:\n%s", out)
	}
	if !strings.Contains(out, "warning: virtualmachines.kubevirt.io default/stuck did not end by itself") {
		t.Errorf("a finalizer was removed in silence:\n%s", out)
	}
	run("", "./uninstall.sh") // Once more is no error, and now the namespace goes.
	left := run("", kubectl, "get", "crd,clusterrole,clusterrolebinding,validatingadmissionpolicy,validatingadmissionpolicybinding,validatingwebhookconfiguration,namespace", "-o", "name")
	for line := range strings.Lines(left) {
		if strings.Contains(line, "varve") || strings.Contains(line, "kubevirt") || strings.Contains(line, "velero") ||
			strings.Contains(line, "longhorn") {
			t.Errorf("left behind: %s", line)
		}
	}
}

func programs(t *testing.T, cluster *controlplane.Cluster) (kubectl, kubeconfig string) {
	t.Helper()
	dir := os.Getenv("KUBEBUILDER_ASSETS")
	if dir == "" {
		dir = "../build/kube/bin"
	}
	kubectl, err := filepath.Abs(filepath.Join(dir, "kubectl"))
	if err != nil {
		t.Fatal(err)
	}
	c := clientcmdapi.NewConfig()
	c.Clusters["test"] = &clientcmdapi.Cluster{Server: cluster.Config.Host, CertificateAuthorityData: cluster.Config.CAData}
	c.AuthInfos["test"] = &clientcmdapi.AuthInfo{ClientCertificateData: cluster.Config.CertData, ClientKeyData: cluster.Config.KeyData}
	c.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}
	c.CurrentContext = "test"
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*c, kubeconfig); err != nil {
		t.Fatal(err)
	}
	return kubectl, kubeconfig
}

// playNamespaceController finalizes namespaces that are deleted: a control plane without a controller manager does not.
func playNamespaceController(t *testing.T, cluster *controlplane.Cluster) {
	t.Helper()
	api, err := kubernetes.NewForConfig(cluster.Config)
	if err != nil {
		t.Fatal(err)
	}
	c := cluster.Client(t, controlplane.Admin)
	finalize := func(ctx context.Context) error {
		ns := &corev1.Namespace{}
		err := c.Get(ctx, client.ObjectKey{Name: controlplane.SystemNamespace}, ns)
		if err != nil || ns.DeletionTimestamp == nil {
			return client.IgnoreNotFound(err)
		}
		ns.Spec.Finalizers = nil
		_, err = api.CoreV1().Namespaces().Finalize(ctx, ns, metav1.UpdateOptions{})
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return nil
		}
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				done <- nil
				return
			case <-tick.C:
				if err := finalize(ctx); err != nil && ctx.Err() == nil {
					done <- fmt.Errorf("finalize: %w", err)
					return
				}
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
