package backuprepository

import (
	"context"
	"fmt"
	"maps"
	"time"

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
	// maintenanceLimit is how long a run may take. The repository's own lock ends an hour after a run that was killed.
	maintenanceLimit = 6 * time.Hour
	// maintenanceUser is the user and the group of the pods.
	maintenanceUser = 65532
)

// readJob reads the maintenance Job, and what its pod said at its end.
func (r *reconciler) readJob(ctx context.Context, in *input) (err error) {
	key := types.NamespacedName{Namespace: r.Namespace, Name: datamove.MaintenanceJob(in.Repo.Name)}
	if in.Job, err = reconcile.Find(ctx, r.cached, key, &batchv1.Job{}); err != nil || in.Job == nil {
		return err
	}
	if runOf(in) == nil {
		return nil
	}
	in.JobMessage, err = LastWords(ctx, r.live, in.Job)
	return err
}

// LastWords returns what the pod of a Job said at its end; "" if nothing is known of it. live reads from the API server: caches have no pods
// of Jobs.
func LastWords(ctx context.Context, live client.Reader, job *batchv1.Job) (message string, err error) {
	pods := &corev1.PodList{}
	if err := live.List(ctx, pods, client.InNamespace(job.Namespace), client.MatchingLabels{batchv1.JobNameLabel: job.Name}); err != nil {
		return "", fmt.Errorf("list the pods of job %s/%s: %w", job.Namespace, job.Name, err)
	}
	for i := range pods.Items {
		for _, c := range pods.Items[i].Status.ContainerStatuses {
			if c.State.Terminated != nil && c.State.Terminated.Message != "" && metav1.IsControlledBy(&pods.Items[i], job) {
				message = c.State.Terminated.Message
			}
		}
	}
	return message, nil
}

// childMeta returns the metadata of what belongs to a BackupRepository.
func childMeta(repo *velerov1.BackupRepository, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: repo.Namespace, Name: name, Labels: map[string]string{datamove.LabelRepository: repo.Name},
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(repo, velerov1.GroupVersion.WithKind("BackupRepository"))},
	}
}

// Work is what a Job does for a repository.
type Work struct {
	// Name is the Job's, and Label is on the Job and its pod, with the value "true".
	Name, Label string
	// Container is the container's name, and Command follows `varve mover`.
	Container, Command string
	Env                []corev1.EnvVar
	// Limit is how long it may take.
	Limit time.Duration
}

// maintenanceJob returns the Job that maintains a repository.
func maintenanceJob(repo *velerov1.BackupRepository, image datamove.PodImage) (*batchv1.Job, error) {
	work := Work{
		Name: datamove.MaintenanceJob(repo.Name), Label: datamove.LabelMaintenance,
		Container: maintenanceContainer, Command: "maintain", Limit: maintenanceLimit,
	}
	if agreed := repo.Annotations[datamove.AnnotationCollectMissing]; agreed != "" {
		work.Env = []corev1.EnvVar{{Name: datamove.CollectMissingVariable, Value: agreed}}
	}
	return NewJob(repo, image, work)
}

// NewJob returns a Job that works in a repository. Its pod has no token for the API server, no privileges, and of
// Secrets the repository's alone. It has the storage of a location that only pods can use, and memory and scratch
// space by what the index has.
func NewJob(repo *velerov1.BackupRepository, image datamove.PodImage, work Work) (*batchv1.Job, error) {
	storage, err := datamove.StorageOf(repo)
	if err != nil {
		return nil, err
	}
	room := datamove.RoomFor(datamove.ContentsOf(repo))
	labels := map[string]string{datamove.LabelRepository: repo.Name, work.Label: "true"}
	meta := childMeta(repo, work.Name)
	meta.Labels = labels
	job := &batchv1.Job{
		ObjectMeta: meta,
		Spec: batchv1.JobSpec{
			BackoffLimit:          ptr.To[int32](0), // a run that failed is recorded, and tried again later
			ActiveDeadlineSeconds: ptr.To(int64(work.Limit / time.Second)),
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
						{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{
							SizeLimit: byteQuantity(room.Scratch),
						}}},
					},
					Containers: []corev1.Container{containerOf(image, work, room)},
				},
			},
		},
	}
	if storage != nil {
		t := &job.Spec.Template
		if storage.IsDirectory() {
			// The files of the repository belong to the user of mover pods, who has to be able to read files of volumes.
			t.Spec.SecurityContext.RunAsNonRoot, t.Spec.SecurityContext.FSGroup = nil, nil
			t.Spec.SecurityContext.RunAsUser, t.Spec.SecurityContext.RunAsGroup = ptr.To[int64](0), ptr.To[int64](0)
		}
		t.Labels = maps.Clone(t.Labels)
		storage.Mount(&t.ObjectMeta, &t.Spec)
	}
	return job, nil
}

// EndOf returns the condition that says how a Job has ended, Complete or Failed; nil while it has not.
func EndOf(job *batchv1.Job) *batchv1.JobCondition {
	for i := range job.Status.Conditions {
		c := &job.Status.Conditions[i]
		if c.Status == corev1.ConditionTrue && (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) {
			return c
		}
	}
	return nil
}

// byteQuantity returns a number of bytes as Kubernetes writes it.
func byteQuantity(bytes int64) *resource.Quantity {
	return resource.NewQuantity(bytes, resource.BinarySI)
}

func containerOf(image datamove.PodImage, work Work, room datamove.Room) corev1.Container {
	return corev1.Container{
		Name: work.Container, Image: image.Name, ImagePullPolicy: image.PullPolicy,
		Command: []string{"/usr/bin/varve", "mover", work.Command},
		// Go's collector works harder before the kernel ends the pod.
		Env: append([]corev1.EnvVar{
			{Name: "GOMEMLIMIT", Value: fmt.Sprintf("%dMiB", room.Memory/8*7>>20)},
		}, work.Env...),
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("50m"), corev1.ResourceMemory: *byteQuantity(room.Memory / 8),
			},
			Limits: corev1.ResourceList{corev1.ResourceMemory: *byteQuantity(room.Memory)},
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
