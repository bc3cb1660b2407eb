package repoaccess

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/session"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/diagnosis"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/location"
	"github.com/varvebackup/varve/internal/repository/storage/blobhttp"
)

const (
	// podTimeout is how long the pod may take to run: an image may have to be pulled, and a volume attached.
	podTimeout = 3 * time.Minute
	// podPoll is the pause between two looks at it, and quietTime how long nobody is told that it is waited for.
	podPoll   = 500 * time.Millisecond
	quietTime = 5 * time.Second
	// podCleanup is how long the deletion of its Job may take. What stays ends by itself.
	podCleanup = 10 * time.Second
	// pingInterval is the pause before the pod is told again that somebody is there, and pingTimeout how long it may take to answer. If one
	// request is lost with the way to the pod, the next one must come before the pod ends.
	pingInterval = datamove.ServeIdle / 6
	pingTimeout  = 30 * time.Second
	// pingPatience is after how much silence the pod has ended, whatever is said about it.
	pingPatience = datamove.ServeIdle + pingTimeout
	// jobLifetime is how long a Job stays that has ended, and jobPatience how long one that has no command any more may wait for its pod.
	jobLifetime = time.Minute
	jobPatience = podTimeout + time.Minute
)

// controllerName is the Deployment whose image the pod has.
const controllerName = "varve-controller"

// podStorage is a repository on a claim or an NFS export. A pod that this command makes in Varve's namespace mounts it,
// and serves its blobs to this command alone. The command has a key, because others may forward ports to the pod. The
// pod has neither the password nor an account.
type podStorage struct {
	session  *session.Session
	cluster  *cluster.Client
	location *velerov1.BackupStorageLocation
	place    location.Place

	job     *batchv1.Job
	pod     string
	forward *cluster.Forwarder
	blobs   *blobhttp.Client
	// alive ends what tells the pod that somebody is there.
	alive context.CancelFunc
	// gone is told that the pod is gone.
	gone context.CancelCauseFunc
}

// servePlace makes the pod for a directory, and waits until it runs. Later gone is told if the pod is gone, within half a minute. Close what
// it returns.
func servePlace(ctx context.Context, s *session.Session, c *cluster.Client, l *velerov1.BackupStorageLocation, place location.Place, directory string, gone context.CancelCauseFunc) (*podStorage, error) {
	p := &podStorage{session: s, cluster: c, location: l, place: place, gone: gone}
	if err := p.start(ctx, directory); err != nil {
		p.Close(ctx)
		return nil, explainRights(err)
	}
	return p, nil
}

// explainRights names the rights that such a location takes.
func explainRights(err error) error {
	return failure.ExplainForbidden(err,
		"a location that is a claim or an NFS export takes the rights to create, patch and delete Jobs, to get and list "+
			"pods, to forward their ports, and to get claims and the Deployment "+controllerName+", in namespace "+
			layout.Namespace)
}

// explainDenial says what a user can do whom the cluster does not let reach the pod.
func explainDenial(err error) error {
	if cluster.Classify(err) == cluster.Forbidden {
		return explainRights(err)
	}
	return &failure.Error{Err: err, Code: errclass.ExitRefused, Hint: failure.Hint(err)}
}

func (p *podStorage) start(ctx context.Context, directory string) error {
	mounted, err := p.find(ctx)
	if err != nil {
		return err
	}
	image, err := p.findImage(ctx)
	if err != nil {
		return err
	}
	key := blobhttp.NewKey()
	job := newServeJob(p.location, mounted, image, directory, key.Digest())
	if err := p.cluster.Create(ctx, job); err != nil {
		return fmt.Errorf("create a Job in namespace %s, whose pod mounts %s: %w", layout.Namespace, p.place, err)
	}
	p.job = job
	if err := p.awaitPod(ctx); err != nil {
		return err
	}
	if err := p.removeDeadline(ctx); err != nil {
		return err
	}
	p.forward = p.cluster.Forward(layout.Namespace, p.pod, datamove.StoragePort)
	p.blobs = blobhttp.NewClient(p.place.String(), p.dial).Authorize(key)
	if err := p.blobs.Ping(ctx); errors.Is(err, errclass.Expired) { // It has hardly run.
		return &failure.Error{Err: err, Code: errclass.ExitCode(err), Hint: p.hint()}
	} else if err != nil {
		return err
	}
	alive, cancel := context.WithCancel(context.WithoutCancel(ctx))
	p.alive = cancel
	go p.keepAlive(alive, pingInterval, pingTimeout, pingPatience)
	return nil
}

// removeDeadline lets the pod run as long as the command does. The deadline is for Jobs whose command has died before the pod ran: it would wait
// for its volume or for a node without end.
func (p *podStorage) removeDeadline(ctx context.Context) error {
	without := p.job.DeepCopy()
	without.Spec.ActiveDeadlineSeconds = nil
	if err := p.cluster.Patch(ctx, without, client.MergeFrom(p.job)); err != nil {
		return fmt.Errorf("remove the deadline of Job %s/%s: %w", p.job.Namespace, p.job.Name, err)
	}
	return nil
}

// keepAlive tells the pod that somebody is there, until it is gone, and drops the connections to it when they are silent: after a change of
// networks they stay so, and all requests would wait for nothing. A line that is only busy is not silent. A pod that has not been reached for as
// long as patience has ended by itself.
func (p *podStorage) keepAlive(ctx context.Context, interval, timeout, patience time.Duration) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	unreached := time.NewTimer(patience)
	defer unreached.Stop()
	for ctx.Err() == nil {
		moved := p.forward.Moved()
		within, cancel := context.WithTimeout(ctx, timeout)
		err := p.blobs.Ping(within)
		idle := p.forward.Moved() == moved
		silent := err != nil && errors.Is(within.Err(), context.DeadlineExceeded) && idle
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, errclass.Expired):
			p.gone(err)
			return
		case err == nil || !idle:
			unreached.Reset(patience)
		case hasFired(unreached):
			p.gone(errclass.Errorf(errclass.Expired, "the pod %s/%s, which mounts %s for this command, could not be reached for %s and has ended by itself: run the command again (%v)",
				layout.Namespace, p.pod, p.place, patience, err))
			return
		}
		if silent {
			p.forward.Drop()
			continue
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
}

func hasFired(t *time.Timer) bool {
	select {
	case <-t.C:
		return true
	default:
		return false
	}
}

// find returns what the pod mounts.
func (p *podStorage) find(ctx context.Context) (datamove.Storage, error) {
	volume := *p.place.Volume
	if volume.PersistentVolumeClaim == nil {
		return datamove.Storage{Volume: volume}, nil
	}
	claim := &corev1.PersistentVolumeClaim{}
	err := p.cluster.Get(ctx, client.ObjectKey{Namespace: layout.Namespace, Name: volume.PersistentVolumeClaim.ClaimName}, claim)
	switch {
	case apierrors.IsNotFound(err):
		claim = nil
	case err != nil:
		return datamove.Storage{}, fmt.Errorf("get claim %s/%s: %w", layout.Namespace, volume.PersistentVolumeClaim.ClaimName, err)
	}
	s, err := datamove.ClaimStorage(volume, claim)
	if err != nil {
		return s, failure.New("", "location %s/%s: %w", p.location.Namespace, p.location.Name, err)
	}
	return s, nil
}

// findImage returns the image that the controller runs, which is that of all such pods.
func (p *podStorage) findImage(ctx context.Context) (datamove.PodImage, error) {
	d := &appsv1.Deployment{}
	if err := p.cluster.Get(ctx, client.ObjectKey{Namespace: layout.Namespace, Name: controllerName}, d); err != nil {
		return datamove.PodImage{}, fmt.Errorf("get Deployment %s/%s, whose image mounts %s: %w", layout.Namespace, controllerName, p.place, err)
	}
	if len(d.Spec.Template.Spec.Containers) == 0 {
		return datamove.PodImage{}, failure.New("", "Deployment %s/%s has no container", layout.Namespace, controllerName)
	}
	c := d.Spec.Template.Spec.Containers[0]
	return datamove.PodImage{Name: c.Image, PullPolicy: c.ImagePullPolicy}, nil
}

// newServeJob returns the Job that serves a directory. It answers only requests with the key whose SHA-256 is keyDigest.
// Kubernetes deletes the Job after it ends, and when its location is deleted.
func newServeJob(
	l *velerov1.BackupStorageLocation, s datamove.Storage, image datamove.PodImage, directory, keyDigest string,
) *batchv1.Job {
	template := s.NewPod(image, datamove.ServeStorage)
	container := &template.Spec.Containers[0]
	container.Args = []string{"--directory=" + directory, "--key-sha256=" + keyDigest}
	container.Env = []corev1.EnvVar{{Name: "GOMEMLIMIT", Value: "400MiB"}} // of the 512 that it may have
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: layout.Namespace, GenerateName: datamove.ServeStorage + "-", Labels: template.Labels},
		Spec: batchv1.JobSpec{
			BackoffLimit: ptr.To[int32](0), // the command that it serves is gone with its pod
			// A command that dies leaves a pod that ends by itself, or one that does not run yet.
			ActiveDeadlineSeconds:   ptr.To(int64(jobPatience / time.Second)),
			TTLSecondsAfterFinished: ptr.To(int32(jobLifetime / time.Second)),
			Template:                template,
		},
	}
	if l.Namespace == layout.Namespace {
		job.OwnerReferences = []metav1.OwnerReference{{APIVersion: velerov1.GroupVersion.String(), Kind: "BackupStorageLocation", Name: l.Name, UID: l.UID}}
	}
	return job
}

// awaitPod waits until the pod of the Job runs.
func (p *podStorage) awaitPod(ctx context.Context) error {
	within, cancel := context.WithTimeoutCause(ctx, podTimeout, failure.ErrTimeout)
	defer cancel()
	began, told, why := p.session.Now(), "", ""
	err := wait.PollUntilContextCancel(within, podPoll, true, func(ctx context.Context) (bool, error) {
		pod, err := p.findPod(ctx)
		quiet := p.session.Now().Sub(began) < quietTime
		switch {
		case err != nil && cluster.Classify(err) == cluster.Unreachable:
			why = err.Error() // it comes back, or time is up
		case err != nil:
			return false, err
		case pod == nil:
			why = "the Job " + p.job.Name + " has no pod yet"
			if !quiet {
				why = strings.TrimSuffix(why+": "+diagnosis.LastWarning(ctx, p.cluster, p.job), ": ")
			}
		case pod.Status.Phase == corev1.PodRunning:
			p.pod = pod.Name
			return true, nil
		default:
			if why = diagnosis.WhyNotRunning(ctx, p.cluster, pod); why == "" {
				why = "it is " + string(pod.Status.Phase)
			}
			if pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
				return false, failure.New(p.hint(), "the pod %s/%s that mounts %s has ended: %s", layout.Namespace, pod.Name, p.place, why)
			}
		}
		if !quiet && why != told {
			p.session.Note("waiting for a pod in namespace %s that mounts %s: %s", layout.Namespace, p.place, why)
			told = why
		}
		return false, nil
	})
	if err != nil && errors.Is(context.Cause(within), failure.ErrTimeout) {
		return &failure.Error{
			Err:  fmt.Errorf("%w after %s while waiting for a pod in namespace %s that mounts %s: %s", failure.ErrTimeout, podTimeout, layout.Namespace, p.place, why),
			Code: errclass.ExitTimeout, Hint: p.hint(),
		}
	}
	return err
}

func (p *podStorage) hint() string {
	return fmt.Sprintf("`varve location describe %s -n %s` shows whether Varve itself can use the location; a Varve in the cluster that is older than this command cannot serve it", p.location.Name, p.location.Namespace)
}

// findPod returns the Job's pod, or nil.
func (p *podStorage) findPod(ctx context.Context) (*corev1.Pod, error) {
	pod, err := diagnosis.PodOfJob(ctx, p.cluster, p.job)
	if err != nil {
		return nil, fmt.Errorf("list the pods of Job %s/%s: %w", p.job.Namespace, p.job.Name, err)
	}
	return pod, nil
}

// dial connects to the pod. That the pod has gone is final: another one would not have what this command has begun to write.
func (p *podStorage) dial(ctx context.Context) (net.Conn, error) {
	conn, err := p.forward.Dial(ctx)
	if err == nil || ctx.Err() != nil {
		return conn, err
	}
	pod := &corev1.Pod{}
	found := p.cluster.Get(ctx, client.ObjectKey{Namespace: layout.Namespace, Name: p.pod}, pod)
	switch {
	case apierrors.IsNotFound(found):
		return nil, errclass.Errorf(errclass.Expired, "the pod %s/%s, which mounts %s for this command, is gone: run the command again", layout.Namespace, p.pod, p.place)
	case found == nil && (pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded):
		return nil, errclass.Errorf(errclass.Expired, "the pod %s/%s, which mounts %s for this command, has ended (%s): run the command again",
			layout.Namespace, p.pod, p.place, diagnosis.WhyNotRunning(ctx, p.cluster, pod))
	case errors.Is(err, errclass.Denied): // by the cluster: the storage itself asks nobody for keys
		return nil, explainDenial(err)
	}
	return nil, err
}

// Close ends the connection, and deletes the Job with its pod.
func (p *podStorage) Close(ctx context.Context) {
	if p.alive != nil {
		p.alive()
	}
	if p.blobs != nil {
		p.blobs.Shut()
	}
	if p.forward != nil {
		p.forward.Close()
	}
	if p.job == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), podCleanup)
	defer cancel()
	err := p.cluster.Delete(ctx, p.job, client.PropagationPolicy(metav1.DeletePropagationBackground), client.Preconditions{UID: &p.job.UID})
	if client.IgnoreNotFound(err) != nil {
		p.session.Warn(fmt.Errorf("the Job %s/%s, which mounts %s for this command, is still there; it ends by itself within %s: %w", p.job.Namespace, p.job.Name, p.place, jobPatience+jobLifetime, err))
	}
}
