//go:build controlplane

package backuprepository

import (
	"path/filepath"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/controller/datamove/storagepod/storagepodtest"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/location"
	"github.com/varvebackup/varve/test/controlplane"
)

const testRole = "arn:aws:iam::111122223333:role/varve-backups"

// A bucket by a role is looked at, maintained and used by pods that are the account varve-mover and have a token for the STS, and no key is
// anywhere. A location with both is refused, and one that has keys again is used with them.
func byARole(w *world) {
	kubelet := storagepodtest.Start(w.T, w.admin, w.ns, filepath.Join(w.dir, "by-role"))
	l := &velerov1.BackupStorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: w.velero, Name: "default"}}
	var credential *corev1.SecretKeySelector
	controlplane.Update(w.T, w.admin, l, false, func(l *velerov1.BackupStorageLocation) {
		credential, l.Spec.Credential = l.Spec.Credential, nil
		metav1.SetMetaDataAnnotation(&l.ObjectMeta, location.AnnotationRole, testRole)
		metav1.SetMetaDataAnnotation(&l.ObjectMeta, location.AnnotationSTS, "https://sts.lan")
		l.Spec.Config = map[string]string{"s3Url": "https://minio.lan"}
	})
	w.start(controlplane.Controller)
	repo := w.repository("shop")
	w.becomes(repo, isReady, "")
	a := w.access(repo, nil)
	if a.S3 == nil || a.S3.HasKeys() || *a.S3.Role != (datamove.RoleAccess{ARN: testRole, STS: "https://sts.lan"}) {
		w.Errorf("%+v", a.S3)
	}
	storage, err := datamove.DecodeStorage(repo.Annotations[datamove.AnnotationStorage])
	if err != nil || storage.Identity == nil || storage.Identity.Audience != "sts.amazonaws.com" {
		w.Errorf("mover pods get %+v %v", storage, err)
	}
	if len(kubelet.Pods()) == 0 {
		w.Error("the controller looked itself")
	}
	for _, p := range kubelet.Pods() {
		w.wantIdentity(&p.Spec)
		if p.Labels[datamove.LabelLook] != datamove.LookBucket {
			w.Errorf("labels %v: it may not call the bucket", p.Labels)
		}
	}
	w.later(2*defaultFrequency, repo) // the repository is younger than the clock
	key, job := types.NamespacedName{Namespace: w.ns, Name: datamove.MaintenanceJob(repo.Name)}, &batchv1.Job{}
	controlplane.Eventually(w.T, func() error { return w.admin.Get(w.Context(), key, job) })
	w.wantIdentity(&job.Spec.Template.Spec)
	if !*job.Spec.Template.Spec.SecurityContext.RunAsNonRoot {
		w.Error("maintenance of a bucket runs as root")
	}

	controlplane.Update(w.T, w.admin, l, false, func(l *velerov1.BackupStorageLocation) { l.Spec.Credential = credential })
	w.later(lookEvery, repo)
	w.becomes(repo, isNotReady, "spec.credential is set as well: a location has keys or a role")
	controlplane.Update(w.T, w.admin, l, false, func(l *velerov1.BackupStorageLocation) {
		delete(l.Annotations, location.AnnotationRole)
		delete(l.Annotations, location.AnnotationSTS)
	})
	w.later(lookEvery, repo)
	w.becomes(repo, isNotReady, "is not in") // the store of this test has another directory
	if strings.Contains(repo.Status.Message, testRole) {
		w.Error(repo.Status.Message)
	}
}

// wantIdentity fails unless a pod is the account, and has a token for the STS alone.
func (w *world) wantIdentity(spec *corev1.PodSpec) {
	w.Helper()
	if spec.ServiceAccountName != datamove.ServiceAccount || spec.AutomountServiceAccountToken == nil || *spec.AutomountServiceAccountToken {
		w.Errorf("account %q, %v", spec.ServiceAccountName, spec.AutomountServiceAccountToken)
	}
	tokens := 0
	for _, v := range spec.Volumes {
		if v.Projected == nil {
			continue
		}
		for _, source := range v.Projected.Sources {
			tokens++
			if source.ServiceAccountToken == nil || source.ServiceAccountToken.Audience != "sts.amazonaws.com" {
				w.Errorf("it has %+v", source)
			}
		}
	}
	if tokens != 1 {
		w.Errorf("%d tokens", tokens)
	}
}
