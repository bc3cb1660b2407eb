//go:build controlplane

package velero

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/varvebackup/varve/test/controlplane"
	"github.com/varvebackup/varve/test/gen"
	"github.com/varvebackup/varve/test/s3"
	"github.com/varvebackup/varve/test/wait"
)

var cluster *controlplane.Cluster

func TestMain(m *testing.M) { controlplane.Main(m, &cluster) }

// start starts a Velero in a namespace and a folder of its own.
func start(t *testing.T, store *s3.Server) *Server {
	t.Helper()
	ns := cluster.Namespace(t)
	return Start(t, Options{Kubeconfig: cluster.Kubeconfig(t, controlplane.Admin, ""), Namespace: ns, Store: store.Endpoint, Prefix: ns})
}

// newConfigMap makes a ConfigMap in a namespace of its own.
func newConfigMap(t *testing.T) *corev1.ConfigMap {
	t.Helper()
	c := &corev1.ConfigMap{ObjectMeta: gen.Meta(cluster.Namespace(t), "kept"), Data: map[string]string{"key": "value"}}
	if err := cluster.Client(t, controlplane.Admin).Create(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	return c
}

// stored returns how many objects a server has in the bucket below a folder of its own.
func stored(t *testing.T, v *Server, folder string) (n int) {
	t.Helper()
	objects := v.Store.Client(t).ListObjects(t.Context(), v.Store.Bucket, minio.ListObjectsOptions{Prefix: v.Prefix + folder, Recursive: true})
	for o := range objects {
		if o.Err != nil {
			t.Fatal(o.Err)
		}
		n++
	}
	return n
}

func TestServer_backsUpRestoresAndDeletes(t *testing.T) {
	t.Parallel()
	v := start(t, s3.Start(t, s3.Options{TLS: true}))
	kept := newConfigMap(t)
	v.Backup(t, "b1", append(MoveData("varve"), "--include-namespaces", kept.Namespace)...)
	if status := v.WaitForBackup(t, "b1", Completed, time.Minute); status.Errors != 0 || status.Warnings != 0 {
		t.Errorf("the backup has problems: %+v", status)
	}
	if n := stored(t, v, "/backups/b1/"); n == 0 {
		t.Error("nothing of the backup is in the bucket")
	}
	// The CLI reads both from the bucket.
	if text := v.Describe(t, "backup", "b1"); !strings.Contains(text, kept.Namespace+"/"+kept.Name) {
		t.Errorf("the ConfigMap is not in the description:\n%s", text)
	}
	if text := v.Logs(t, "backup", "b1"); !strings.Contains(text, "Backed up") {
		t.Errorf("the log of the backup:\n%s", text)
	}

	target := cluster.Namespace(t)
	v.Restore(t, "r1", "b1", "--namespace-mappings", kept.Namespace+":"+target)
	v.WaitForRestore(t, "r1", Completed, time.Minute)
	restored := &corev1.ConfigMap{}
	if err := cluster.Client(t, controlplane.Admin).Get(t.Context(), client.ObjectKey{Namespace: target, Name: kept.Name}, restored); err != nil || restored.Data["key"] != "value" {
		t.Errorf("restored: %v, %v", restored.Data, err)
	}

	v.DeleteBackup(t, "b1", time.Minute)
	if n := stored(t, v, "/backups/b1/"); n != 0 {
		t.Errorf("%d objects of the deleted backup are in the bucket", n)
	}
}

// Each of two servers has its own backups, although they share machine, cluster and bucket.
func TestServer_leavesAnotherAlone(t *testing.T) {
	t.Parallel()
	store, kept := s3.Start(t, s3.Options{}), newConfigMap(t)
	a, b := start(t, store), start(t, store)
	a.Backup(t, "of-a", "--include-namespaces", kept.Namespace)
	b.Backup(t, "of-b", "--include-namespaces", kept.Namespace)
	a.WaitForBackup(t, "of-a", Completed, time.Minute)
	b.WaitForBackup(t, "of-b", Completed, time.Minute)
	if text := b.Run(t, "backup", "get"); strings.Contains(text, "of-a") || !strings.Contains(text, "of-b") {
		t.Errorf("the backups of b:\n%s", text)
	}
}

func TestServer_goesOnAfterStopAndKill(t *testing.T) {
	t.Parallel()
	v := start(t, s3.Start(t, s3.Options{}))
	kept := newConfigMap(t)
	for i, end := range []func(testing.TB){v.Stop, v.Kill} {
		group := v.process.Group()
		end(t)
		wait.Until(t, time.Minute, "the server and its plugins to be gone", func() bool { return errors.Is(unix.Kill(-group, 0), unix.ESRCH) })
		name := "b" + strconv.Itoa(i)
		v.Backup(t, name, "--include-namespaces", kept.Namespace)
		if status, err := v.status(t.Context(), "Backup", name); err != nil || status.Phase != "" {
			t.Errorf("without a server: %+v, %v", status, err)
		}
		v.Restart(t)
		v.WaitForBackup(t, name, Completed, time.Minute)
	}
}

// Velero's own story of a failure is what a test shows.
func TestWaitForBackup_saysWhyItFailed(t *testing.T) {
	t.Parallel()
	v := start(t, s3.Start(t, s3.Options{}))
	backup := v.object("Backup", "b1") // the CLI refuses such a one
	backup.Object["spec"] = map[string]any{"storageLocation": Location, "volumeSnapshotLocations": []any{"missing"}}
	if err := v.cluster.Create(t.Context(), backup); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	_, err := v.awaitPhase(t.Context(), "Backup", "b1", Completed, time.Hour)
	if err == nil || time.Since(began) > time.Minute {
		t.Fatalf("%v after %s", err, time.Since(began))
	}
	for _, word := range []string{"Backup b1 to be Completed", "it ended", FailedValidation, "missing", "Storage Location:  " + Location, "velero backup logs"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("no %q in: %v", word, err)
		}
	}
}

func TestStart_needsNothingButTheCluster(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	v := start(t, s3.Start(t, s3.Options{}))
	v.Run(t, "client", "config", "set", "colorized=false")
	if _, err := os.Stat(filepath.Join(v.home, ".config", "velero", "config.json")); err != nil {
		t.Error(err)
	}
	if entries, err := os.ReadDir(os.Getenv("HOME")); err != nil || len(entries) != 0 {
		t.Errorf("files in HOME: %v, %v", entries, err)
	}
	// Started again for the same cluster, it finds everything in place.
	again := Start(t, Options{Kubeconfig: v.Kubeconfig, Namespace: v.Namespace, Store: v.Store, Prefix: v.Prefix, Arguments: []string{"--log-level", "debug"}})
	if text := tail(again.log); !strings.Contains(text, "level=debug") {
		t.Error("the arguments did not arrive")
	}
}

func TestFind_namesTheTarget(t *testing.T) {
	t.Setenv("VARVE_VELERO", t.TempDir())
	if _, err := find(); err == nil || !strings.Contains(fmt.Sprint(err), "make velero") {
		t.Errorf("got %v, want an error that says `make velero`", err)
	}
}
