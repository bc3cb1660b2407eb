package backuprepository

import (
	"context"
	"fmt"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/reconcile"
)

const (
	// maintenanceContainer is the container of a maintenance pod.
	maintenanceContainer = "maintain"
	// maintenanceSeconds is how long a run may take. The repository's own lock ends an hour after a run that was killed.
	maintenanceSeconds = 6 * 60 * 60
	// maintenanceUser is the user and the group of maintenance pods.
	maintenanceUser = 65532
)

// readJob reads the maintenance Job, and what its pod said if it failed.
func (r *reconciler) readJob(ctx context.Context, in *input) (err error) {
	key := types.NamespacedName{Namespace: r.Namespace, Name: datamove.MaintenanceJob(in.Repo.Name)}
	if in.Job, err = reconcile.Find(ctx, r.cached, key, &batchv1.Job{}); err != nil || in.Job == nil {
		return err
	}
	if run := runOf(in); run == nil || run.Result != velerov1.MaintenanceFailed {
		return nil
	}
	pods := &corev1.PodList{}
	// The cache has no pods of Jobs.
	if err := r.live.List(ctx, pods, client.InNamespace(r.Namespace), client.MatchingLabels{batchv1.JobNameLabel: in.Job.Name}); err != nil {
		return fmt.Errorf("list the pods of job %s/%s: %w", in.Job.Namespace, in.Job.Name, err)
	}
	for i := range pods.Items {
		for _, c := range pods.Items[i].Status.ContainerStatuses {
			if c.State.Terminated != nil && c.State.Terminated.Message != "" && ownedByJob(&pods.Items[i], in.Job) {
				in.JobMessage = c.State.Terminated.Message
			}
		}
	}
	return nil
}

func ownedByJob(pod *corev1.Pod, job *batchv1.Job) bool {
	owner := metav1.GetControllerOfNoCopy(pod)
	return owner != nil && owner.UID == job.UID
}

// childMeta returns the metadata of what belongs to a BackupRepository.
func childMeta(repo *velerov1.BackupRepository, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: repo.Namespace, Name: name, Labels: map[string]string{datamove.LabelRepository: repo.Name},
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(repo, velerov1.GroupVersion.WithKind("BackupRepository"))},
	}
}

// maintenanceJob returns the Job that maintains a repository. Its pod has no account, no privileges, and of Secrets the repository's alone.
func maintenanceJob(repo *velerov1.BackupRepository, image Image) *batchv1.Job {
	labels := map[string]string{datamove.LabelRepository: repo.Name, datamove.LabelMaintenance: "true"}
	meta := childMeta(repo, datamove.MaintenanceJob(repo.Name))
	meta.Labels = labels
	return &batchv1.Job{
		ObjectMeta: meta,
		Spec: batchv1.JobSpec{
			BackoffLimit:          ptr.To[int32](0), // a run that failed is recorded, and tried again later
			ActiveDeadlineSeconds: ptr.To[int64](maintenanceSeconds),
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					RestartPolicy:                corev1.RestartPolicyNever,
					AutomountServiceAccountToken: ptr.To(false),
					EnableServiceLinks:           ptr.To(false),
					SecurityContext: &corev1.PodSecurityContext{
						RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](maintenanceUser), RunAsGroup: ptr.To[int64](maintenanceUser), FSGroup: ptr.To[int64](maintenanceUser),
						SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
					},
					Volumes: []corev1.Volume{
						{Name: "repository", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
							SecretName: repo.Name, DefaultMode: ptr.To[int32](0o440), Items: []corev1.KeyToPath{{Key: datamove.AccessKey, Path: datamove.AccessKey}},
						}}},
						{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: ptr.To(resource.MustParse("4Gi"))}}},
					},
					Containers: []corev1.Container{maintenanceOf(image)},
				},
			},
		},
	}
}

func maintenanceOf(image Image) corev1.Container {
	return corev1.Container{
		Name: maintenanceContainer, Image: image.Name, ImagePullPolicy: image.PullPolicy,
		Command: []string{"/usr/bin/varve", "mover", "maintain"},
		// Go's collector works harder before the kernel ends the pod.
		Env: []corev1.EnvVar{{Name: "GOMEMLIMIT", Value: "900MiB"}},
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m"), corev1.ResourceMemory: resource.MustParse("128Mi")},
			Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")},
		},
		VolumeMounts: []corev1.VolumeMount{
			{Name: "repository", MountPath: datamove.AccessDirectory, ReadOnly: true},
			{Name: "tmp", MountPath: "/tmp"},
		},
		SecurityContext: &corev1.SecurityContext{
			Privileged: ptr.To(false), AllowPrivilegeEscalation: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true),
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
	}
}
