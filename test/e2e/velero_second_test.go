//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/lab"
	"github.com/varvebackup/varve/test/velero"
	"github.com/varvebackup/varve/test/verdict"
	"github.com/varvebackup/varve/test/wait"
)

// secondBridge is the host's bridge of the second box. Its directory is that of the first with "-second" behind it.
const secondBridge = "vbsecond0"

// restoreInSecondCluster restores a backup in a cluster that has nothing of it: no DataUpload, no repository, no password. It knows the
// bucket, and may only read it. The restore waits, says which Secret it waits for, and goes on once somebody has brought it.
func (s *scene) restoreInSecondCluster(first *velero.Server, backup, want string) {
	s.t.Helper()
	ctx := s.t.Context()
	kubeconfig := s.startSecondBox()
	other, err := lab.Open(ctx, kubeconfig, cluster.build, "elsewhere", nil)
	s.must(err)
	s.must(other.SetMover(ctx, shortConsumerWait))
	v := velero.Start(s.t, velero.Options{Kubeconfig: kubeconfig, Store: first.Store, Prefix: first.Prefix})
	location := &velerov1.BackupStorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: v.Namespace, Name: velero.Location}}
	s.must(other.Patch(ctx, location, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"accessMode":"ReadOnly"}}`))))
	s.must(wait.For(ctx, 3*time.Minute, "the backup to be found in the bucket", func(ctx context.Context) (bool, string, error) {
		text, err := v.Command(ctx, "backup", "get", backup)
		return err == nil, text, nil
	}))

	v.Restore(s.t, "here", backup)
	name := datamove.LocationPasswordSecret(datamove.Location{Namespace: first.Namespace, Name: velero.Location})
	s.must(wait.For(ctx, 2*time.Minute, "a download that names the Secret which is missing", func(ctx context.Context) (bool, string, error) {
		return saysSo(ctx, other, v.Namespace, layout.Namespace+"/"+name)
	}))
	password := &corev1.Secret{}
	s.must(s.Get(ctx, client.ObjectKey{Namespace: layout.Namespace, Name: name}, password))
	s.must(other.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: layout.Namespace, Name: name}, Data: password.Data}))

	v.WaitForRestore(s.t, "here", velero.Completed, moveTimeout)
	there := *s
	there.Lab = other
	other.Namespace = s.Namespace
	if got := there.listVolumes(); got != want {
		verdict.Errorf(s.t, "backed up:\n%s\nrestored in the second cluster:\n%s", want, got)
	}
	there.nothingOfMovesIsLeft()
	s.removeRelease(kubeconfig, other, client.ObjectKey{Namespace: layout.Namespace, Name: name})
}

// saysSo tells whether a download's message, or that of the repository which it waits for, has the text in it.
func saysSo(ctx context.Context, l *lab.Lab, namespace, text string) (bool, string, error) {
	var seen []string
	var downloads velerov2.DataDownloadList
	var repositories velerov1.BackupRepositoryList
	if err := errors.Join(l.List(ctx, &downloads, client.InNamespace(namespace)), l.List(ctx, &repositories, client.InNamespace(namespace))); err != nil {
		return false, "", err
	}
	for _, d := range downloads.Items {
		seen = append(seen, fmt.Sprintf("download %s %s: %s", d.Name, d.Status.Phase, d.Status.Message))
	}
	for _, r := range repositories.Items {
		seen = append(seen, fmt.Sprintf("repository %s %s: %s", r.Name, r.Status.Phase, r.Status.Message))
	}
	all := strings.Join(seen, "\n")
	return strings.Contains(all, text), all, nil
}

// startSecondBox brings up a cluster of one node beside the box, with a release of Varve's Helm chart in it, for as long
// as the test runs. It returns the path of its kubeconfig.
func (s *scene) startSecondBox() string {
	s.t.Helper()
	dir := filepath.Clean(os.Getenv("VARVE_BOX_DIR")) + "-second"
	kubeconfig := filepath.Join(dir, "kubeconfig")
	box := func(limit time.Duration, arguments ...string) {
		s.t.Helper()
		s.runFor(kubeconfig, limit, "build/bin/box", append(arguments, "--dir", dir)...)
	}
	box(time.Minute, "down") // what a test left that was killed
	s.t.Cleanup(func() { box(2*time.Minute, "down") })
	box(3*time.Minute, "up", "--bridge", secondBridge, "--nodes", "1")
	box(3*time.Minute, "load", filepath.Join(cluster.build, "images", "varve.tar"), filepath.Join(cluster.build, "images", "varve-launcher.tar"))
	s.runHelm(kubeconfig, "install", "varve", "build/chart/varve", "--create-namespace")
	s.runFor(kubeconfig, time.Minute, "build/kube/bin/kubectl", "apply", "-f", "deploy/box/kubevirt.yaml")
	return kubeconfig
}

// runFor runs a program of the checkout, in its root, for the cluster of a kubeconfig.
func (s *scene) runFor(kubeconfig string, limit time.Duration, program string, arguments ...string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.t.Context()), limit)
	defer cancel()
	root := filepath.Dir(cluster.build)
	c := exec.CommandContext(ctx, filepath.Join(root, program), arguments...)
	c.Dir = root
	c.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	if out, err := c.CombinedOutput(); err != nil {
		s.t.Fatalf("%s %s: %v\n%s", program, strings.Join(arguments, " "), err, out)
	}
}

// runHelm runs Helm for Varve's release, and waits until what it has changed runs or is gone.
func (s *scene) runHelm(kubeconfig string, arguments ...string) {
	s.t.Helper()
	arguments = append(arguments, "--namespace", layout.Namespace, "--wait", "--timeout", "4m")
	s.runFor(kubeconfig, 5*time.Minute, "build/helm/bin/helm", arguments...)
}

// removeRelease brings Varve's release in the second cluster to other values, and removes it. What users have stays:
// downloads that are done, and the password of their repository.
func (s *scene) removeRelease(kubeconfig string, other *lab.Lab, password client.ObjectKey) {
	s.t.Helper()
	ctx := s.t.Context()
	s.runHelm(kubeconfig, "upgrade", "varve", "build/chart/varve", "--set", "images.pullPolicy=IfNotPresent")
	var controller appsv1.Deployment
	name := client.ObjectKey{Namespace: layout.Namespace, Name: "varve-controller"}
	s.must(other.Get(ctx, name, &controller))
	policy := controller.Spec.Template.Spec.Containers[0].ImagePullPolicy
	if controller.Status.ReadyReplicas == 0 || policy != corev1.PullIfNotPresent {
		verdict.Errorf(s.t, "after the upgrade: %d controllers are ready, with images pulled %s",
			controller.Status.ReadyReplicas, policy)
	}
	var before, after velerov2.DataDownloadList
	s.must(other.List(ctx, &before))
	s.runHelm(kubeconfig, "uninstall", "varve")
	if err := other.Get(ctx, name, &controller); !apierrors.IsNotFound(err) {
		verdict.Errorf(s.t, "the controller is there after the release was removed: %v", err)
	}
	s.must(other.List(ctx, &after))
	if len(before.Items) == 0 || len(after.Items) != len(before.Items) {
		verdict.Errorf(s.t, "%d downloads before the release was removed, %d after", len(before.Items), len(after.Items))
	}
	s.must(other.Get(ctx, password, &corev1.Secret{}))
}
