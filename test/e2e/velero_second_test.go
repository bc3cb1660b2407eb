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

	corev1 "k8s.io/api/core/v1"
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

// startSecondBox brings up a cluster of one node beside the box, with Varve in it, for as long as the test runs. It returns the path of its
// kubeconfig.
func (s *scene) startSecondBox() string {
	s.t.Helper()
	ctx := context.WithoutCancel(s.t.Context())
	root := filepath.Dir(cluster.build)
	dir := filepath.Clean(os.Getenv("VARVE_BOX_DIR")) + "-second"
	kubeconfig := filepath.Join(dir, "kubeconfig")
	run := func(limit time.Duration, program string, arguments ...string) {
		s.t.Helper()
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		c := exec.CommandContext(ctx, filepath.Join(root, program), arguments...)
		c.Dir = root
		c.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "KUBECTL="+filepath.Join(cluster.build, "kube", "bin", "kubectl"))
		if out, err := c.CombinedOutput(); err != nil {
			s.t.Fatalf("%s %s: %v\n%s", program, strings.Join(arguments, " "), err, out)
		}
	}
	box := func(limit time.Duration, arguments ...string) {
		s.t.Helper()
		run(limit, "build/bin/box", append(arguments, "--dir", dir)...)
	}
	box(time.Minute, "down") // what a test left that was killed
	s.t.Cleanup(func() { box(2*time.Minute, "down") })
	box(3*time.Minute, "up", "--bridge", secondBridge, "--nodes", "1")
	box(3*time.Minute, "load", filepath.Join(cluster.build, "images", "varve.tar"), filepath.Join(cluster.build, "images", "varve-launcher.tar"))
	run(4*time.Minute, "deploy/install.sh", "build/deploy", "deploy/box/kubevirt.yaml")
	return kubeconfig
}
