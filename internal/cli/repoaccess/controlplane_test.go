//go:build controlplane

package repoaccess

import (
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/controlplane"
)

var kube *controlplane.Cluster

func TestMain(m *testing.M) { controlplane.Main(m, &kube) }

// A real API server takes the Job, and lets go of its deadline when the pod runs.
func TestControlPlane_takesTheServeJob(t *testing.T) {
	t.Parallel()
	l := &velerov1.BackupStorageLocation{}
	l.Namespace, l.Name, l.UID = layout.Namespace, "shelf", "1"
	volume := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "backups"}}
	job := newServeJob(l, datamove.Storage{Volume: volume}, datamove.PodImage{Name: "varve:test"},
		datamove.StorageDirectory+"/plugins/varve/app", "00")
	admin, err := client.NewWithWatch(kube.Config, client.Options{Scheme: kube.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	if err := admin.Create(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	p := &podStorage{cluster: &cluster.Client{WithWatch: admin}, job: job}
	if err := p.removeDeadline(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := &batchv1.Job{}
	if err := admin.Get(t.Context(), client.ObjectKeyFromObject(job), got); err != nil || got.Spec.ActiveDeadlineSeconds != nil {
		t.Errorf("%v %v", got.Spec.ActiveDeadlineSeconds, err)
	}
}
