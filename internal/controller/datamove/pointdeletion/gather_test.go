package pointdeletion

import (
	"errors"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
)

func newClient(t *testing.T, objects ...client.Object) client.WithWatch {
	t.Helper()
	s := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(s), velerov1.AddToScheme(s), velerov2.AddToScheme(s)); err != nil {
		t.Fatal(err)
	}
	return fake.NewClientBuilder().WithScheme(s).WithObjects(objects...).Build()
}

// newJob returns a Job of the BackupRepository with UID x, which has ended, and its pod, which says something.
func newJob(condition batchv1.JobConditionType, says string) (*batchv1.Job, *corev1.Pod) {
	name := datamove.DeletionJobName("repo-x")
	asked := datamove.DeletionJob{Repository: "r1", Points: []datamove.PointToDelete{{ID: pointOf(ptr1())}}}
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: name, UID: "j"}}
	job.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(newInput().Repository, velerov1.GroupVersion.WithKind("BackupRepository"))}
	job.Spec.Template.Spec.Containers = []corev1.Container{{Env: []corev1.EnvVar{{Name: datamove.DeletionVariable, Value: asked.Encode()}}}}
	job.Status.Conditions = []batchv1.JobCondition{{Type: condition, Status: corev1.ConditionTrue, Reason: "BackoffLimitExceeded", Message: "why"}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "varve", Name: "p", Labels: map[string]string{batchv1.JobNameLabel: name},
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(job, batchv1.SchemeGroupVersion.WithKind("Job"))},
	}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: says}}}}
	return job, pod
}

// Only the report of a Job's own pod says that restore points are deleted.
func TestReadJob_takesNoSilenceForSuccess(t *testing.T) {
	t.Parallel()
	done := datamove.DeletionReport{}.Encode()
	for name, c := range map[string]struct {
		condition batchv1.JobConditionType
		says      string
		edit      func(*batchv1.Job, *corev1.Pod)
		failed    bool
		foreign   bool
	}{
		"it says what it did":          {batchv1.JobComplete, done, nil, false, false},
		"it says nothing":              {batchv1.JobComplete, "", nil, true, false},
		"it says something else":       {batchv1.JobComplete, "restore points are deleted", nil, true, false},
		"of another version":           {batchv1.JobComplete, `{"version":2}`, nil, true, false},
		"its pod is gone":              {batchv1.JobComplete, done, func(_ *batchv1.Job, p *corev1.Pod) { p.Labels = nil }, true, false},
		"the pod of a Job before":      {batchv1.JobComplete, done, func(_ *batchv1.Job, p *corev1.Pod) { p.OwnerReferences[0].UID = "i" }, true, false},
		"it failed":                    {batchv1.JobFailed, "the server does not answer", nil, true, false},
		"it failed without a word":     {batchv1.JobFailed, "", nil, true, false},
		"of a BackupRepository before": {batchv1.JobComplete, done, func(j *batchv1.Job, _ *corev1.Pod) { j.OwnerReferences[0].UID = "w" }, false, true},
		"that is deleted": {batchv1.JobComplete, done, func(j *batchv1.Job, _ *corev1.Pod) {
			at := metav1.NewTime(testNow)
			j.DeletionTimestamp, j.Finalizers = &at, []string{"x"}
		}, false, true},
		"of nobody": {batchv1.JobComplete, done, func(j *batchv1.Job, _ *corev1.Pod) { j.OwnerReferences = nil }, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			job, pod := newJob(c.condition, c.says)
			if c.edit != nil {
				c.edit(job, pod)
			}
			r := &repositories{Options: Options{Namespace: "varve"}, live: newClient(t, job, pod)}
			in := newInput()
			if _, err := r.readJob(t.Context(), in, "repo-x"); err != nil {
				t.Fatal(err)
			}
			if !in.Job.Ended || (in.Job.Failure != "") != c.failed || in.Job.Foreign != c.foreign || !in.Job.Points[pointOf(ptr1())] {
				t.Errorf("%+v", in.Job)
			}
			if over := decide(in).Notes[in.Uploads[0].UID].Over(); over != (!c.failed && !c.foreign) {
				t.Errorf("over: %v", over)
			}
		})
	}
}

// A Job that does not run soon says why on the DataUploads that wait for it.
func TestReadJob_saysWhyItDoesNotRun(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		age   time.Duration
		ready int32
		want  string
	}{
		"at first":       {quietStart - time.Second, 0, "a Job deletes it"},
		"later":          {quietStart, 0, "a Job that is to delete it does not run: its pod is Pending: no node"},
		"later, it runs": {quietStart, 1, "a Job deletes it"},
	} {
		job, pod := newJob(batchv1.JobSuspended, "")
		job.CreationTimestamp, job.Status.Ready = metav1.NewTime(testNow.Add(-c.age)), &c.ready
		pod.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "no node"}}}
		r := &repositories{Options: Options{Namespace: "varve"}, live: newClient(t, job, pod)}
		in := newInput()
		if _, err := r.readJob(t.Context(), in, "repo-x"); err != nil {
			t.Fatal(err)
		}
		d := decide(in)
		if got := d.Notes[in.Uploads[0].UID].Message; got != c.want || d.After <= 0 || d.After > lookEvery {
			t.Errorf("%s: %q, after %s", name, got, d.After)
		}
	}
}

// A restore point that another DataUpload refers to is not deleted, unless that one is deleted too, or is to be.
func TestGather_seesWhoRefersToARestorePoint(t *testing.T) {
	t.Parallel()
	deleted := metav1.NewTime(testNow)
	for name, c := range map[string]struct {
		edit  func(*velerov2.DataUpload)
		keeps bool
	}{
		"a copy":                   {func(*velerov2.DataUpload) {}, true},
		"a copy that failed":       {func(o *velerov2.DataUpload) { o.Status.Phase = velerov2.PhaseFailed }, true},
		"one that is deleted":      {func(o *velerov2.DataUpload) { o.DeletionTimestamp, o.Finalizers = &deleted, []string{"other"} }, false},
		"of another restore point": {func(o *velerov2.DataUpload) { u := newUpload(2); o.Status.SnapshotID = u.SnapshotID }, false},
		"in another location":      {func(o *velerov2.DataUpload) { o.Spec.BackupStorageLocation = "other" }, false},
		"of a backup that is deleted": {func(o *velerov2.DataUpload) {
			o.Annotations = map[string]string{datamove.AnnotationPointDeletion: datamove.PointDeletion{UID: o.UID, ForBackup: true}.Encode()}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := newUpload(1)
			owner := &velerov2.DataUpload{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "owner", UID: u.UID, DeletionTimestamp: &deleted, Finalizers: []string{datamove.Finalizer}}}
			owner.Spec.BackupStorageLocation = "default"
			owner.Status.Phase, owner.Status.SnapshotID = velerov2.PhaseCompleted, u.SnapshotID
			other := owner.DeepCopy()
			other.Name, other.UID, other.DeletionTimestamp, other.Finalizers = "other", "00000000-0000-0000-0000-000000000009", nil, nil
			c.edit(other)
			at := datamove.RepositoryName("shop", locationOf(owner))
			l := &velerov1.BackupStorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "default"}}
			r := &repositories{
				Options: Options{Namespace: "varve", Clock: testclock.NewFakePassiveClock(testNow)},
				cached:  newClient(t, owner, other, l), live: newClient(t), places: newPlaces(),
			}
			in, objects, _, err := r.gather(t.Context(), at)
			if err != nil || objects[u.UID] == nil {
				t.Fatalf("%+v %v", in, err)
			}
			if note := decide(in).Notes[u.UID]; strings.Contains(note.Message, "velero/other refers to") != c.keeps {
				t.Errorf("%+v", note)
			}
		})
	}
}

// A cache that has just begun, or is behind, has no location yet.
func TestReadLocation_believesNoCacheThatItIsGone(t *testing.T) {
	t.Parallel()
	at := types.NamespacedName{Namespace: "velero", Name: "default"}
	l := &velerov1.BackupStorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: at.Namespace, Name: at.Name}, Spec: velerov1.BackupStorageLocationSpec{AccessMode: velerov1.AccessReadOnly}}
	for name, c := range map[string]struct {
		cached, live client.Client
		gone         bool
	}{
		"there":             {newClient(t, l), newClient(t, l), false},
		"not in the cache":  {newClient(t), newClient(t, l), false},
		"gone":              {newClient(t), newClient(t), true},
		"gone a moment ago": {newClient(t, l), newClient(t), false},
	} {
		in := newInput()
		in.Location = at
		if err := (&repositories{cached: c.cached, live: c.live}).readLocation(t.Context(), in); err != nil || in.LocationGone != c.gone || in.ReadOnly == c.gone || in.Ending {
			t.Errorf("%s: %+v %v", name, in, err)
		}
	}
	ends := metav1.NewTime(time.Now())
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "velero", DeletionTimestamp: &ends, Finalizers: []string{"kubernetes"}}}
	in := newInput()
	in.Location = at
	if err := (&repositories{cached: newClient(t, ns), live: newClient(t)}).readLocation(t.Context(), in); err != nil || !in.Ending {
		t.Errorf("%+v %v", in, err)
	}
}

// What is not completed has no restore point, and what keeps no finalizer waits for nobody.
func TestIsWanted(t *testing.T) {
	t.Parallel()
	deleted := metav1.NewTime(testNow)
	for name, c := range map[string]struct {
		edit func(*velerov2.DataUpload)
		want bool
	}{
		"deleted":       {func(*velerov2.DataUpload) {}, true},
		"not deleted":   {func(o *velerov2.DataUpload) { o.DeletionTimestamp = nil }, false},
		"it moves data": {func(o *velerov2.DataUpload) { o.Status.Phase = velerov2.PhaseInProgress }, false},
		"it has failed": {func(o *velerov2.DataUpload) { o.Status.Phase = velerov2.PhaseFailed }, false},
		"it has failed in the middle": {func(o *velerov2.DataUpload) {
			o.Status.Phase, o.Status.StartTimestamp = velerov2.PhaseFailed, &deleted
		}, true},
		"without Varve's finalizer": {func(o *velerov2.DataUpload) { o.Finalizers = []string{"other"} }, false},
		"done": {func(o *velerov2.DataUpload) {
			o.Annotations = map[string]string{datamove.AnnotationPointDeletion: datamove.PointDeletion{UID: "u", State: datamove.DeletionDone}.Encode()}
		}, false},
		"done for the one that it is a copy of": {func(o *velerov2.DataUpload) {
			o.Annotations = map[string]string{datamove.AnnotationPointDeletion: datamove.PointDeletion{UID: "v", State: datamove.DeletionDone}.Encode()}
		}, true},
	} {
		o := &velerov2.DataUpload{ObjectMeta: metav1.ObjectMeta{UID: "u", DeletionTimestamp: &deleted, Finalizers: []string{datamove.Finalizer}}}
		o.Status.Phase = velerov2.PhaseCompleted
		c.edit(o)
		if got := isWanted(o); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// An upload that ended on a node that was cut off does not know whether it published its restore point, and that has
// the ID of its UID.
func TestViewOf_knowsTheRestorePointThatMayBeThere(t *testing.T) {
	t.Parallel()
	o := &velerov2.DataUpload{ObjectMeta: metav1.ObjectMeta{UID: "0a0a0a0a-0a0a-0a0a-0a0a-0a0a0a0a0a0a"}}
	o.Spec.SourceNamespace, o.Status.Phase = "shop", velerov2.PhaseCanceled
	if id := viewOf(o).SnapshotID; id != "" {
		t.Errorf("it never began, and its restore point is %s", id)
	}
	began := metav1.NewTime(testNow)
	o.Status.StartTimestamp = &began
	u := viewOf(o)
	if id, err := datamove.ParseSnapshotID(u.SnapshotID); err != nil || !owns(&u, id.Point) || id.Namespace != "shop" {
		t.Errorf("%+v, %v", u, err)
	}
}
