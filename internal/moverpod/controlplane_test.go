//go:build controlplane

package moverpod

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/test/controlplane"
)

var cluster *controlplane.Cluster

func TestMain(m *testing.M) {
	registerOutages()
	controlplane.Main(m, &cluster)
}

// realPod is a mover pod whose object is in a real API server, which it reaches with its own token.
type realPod struct {
	*pod

	admin  client.Client
	object client.Object
}

// newRealPod creates the object of a job, and a pod with an account that may do what verbs say.
func (s *site) newRealPod(t *testing.T, job datamove.Job, volume string, verbs ...string) *realPod {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{velerov2.AddToScheme, corev1.AddToScheme, rbacv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	admin, err := client.New(cluster.ConfigFor(controlplane.Admin), client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	job.Namespace = cluster.Namespace(t)
	r := &realPod{admin: admin}
	r.object = newObject(job)
	r.create(t, r.object)
	job.UID = r.object.GetUID()
	r.pod = s.newPod(t, job, volume)
	r.PodName = datamove.ChildName(job.Kind, job.UID)
	r.Config = r.connect(t, verbs)
	return r
}

// newObject returns the object of a job as Velero makes it: without a phase.
func newObject(job datamove.Job) client.Object {
	metadata := metav1.ObjectMeta{Namespace: job.Namespace, Name: job.Name, Finalizers: []string{datamove.Finalizer}}
	timeout := velerov1.Duration{Duration: time.Minute}
	if job.Kind == datamove.Upload {
		return &velerov2.DataUpload{ObjectMeta: metadata, Spec: velerov2.DataUploadSpec{
			SnapshotType: velerov2.SnapshotCSI, SourcePVC: job.SourceClaim, SourceNamespace: job.SourceNamespace, BackupStorageLocation: "default", OperationTimeout: timeout,
		}}
	}
	return &velerov2.DataDownload{ObjectMeta: metadata, Spec: velerov2.DataDownloadSpec{
		TargetVolume: velerov2.TargetVolumeSpec{PVC: "data", Namespace: "app"}, SnapshotID: job.SnapshotID, SourceNamespace: "app", BackupStorageLocation: "default", OperationTimeout: timeout,
	}}
}

func (r *realPod) create(t *testing.T, o client.Object) {
	t.Helper()
	if err := r.admin.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}

// connect returns the configuration of the pod: the token that the kubelet would give to it.
func (r *realPod) connect(t *testing.T, verbs []string) *rest.Config {
	t.Helper()
	namespace := cluster.Namespace(t)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: datamove.ServiceAccount}}
	r.create(t, account)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: r.PodName},
		Spec:       corev1.PodSpec{ServiceAccountName: account.Name, Containers: []corev1.Container{{Name: "mover", Image: "varve"}}},
	}
	r.create(t, p)
	r.PodUID = p.UID
	if len(verbs) > 0 {
		role := &rbacv1.Role{
			ObjectMeta: metav1.ObjectMeta{Namespace: r.Job.Namespace, Name: "mover"},
			Rules:      []rbacv1.PolicyRule{{APIGroups: []string{velerov2.GroupVersion.Group}, Resources: []string{"datauploads", "datadownloads"}, Verbs: verbs}},
		}
		r.create(t, role)
		r.create(t, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: r.Job.Namespace, Name: "mover"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: account.Name}},
		})
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: p.UID},
	}}
	if err := r.admin.SubResource("token").Create(t.Context(), account, request); err != nil {
		t.Fatal(err)
	}
	return &rest.Config{
		Host: cluster.Config.Host, BearerToken: request.Status.Token, TLSClientConfig: rest.TLSClientConfig{CAData: cluster.Config.CAData},
	}
}

// update changes the object as the driver or Velero does.
func (r *realPod) update(t *testing.T, edit func(o client.Object, phase *velerov2.Phase, cancel *bool)) {
	t.Helper()
	controlplane.Update(t, r.admin, r.object, false, func(o client.Object) {
		switch o := o.(type) {
		case *velerov2.DataUpload:
			edit(o, &o.Status.Phase, &o.Spec.Cancel)
		case *velerov2.DataDownload:
			edit(o, &o.Status.Phase, &o.Spec.Cancel)
		}
	})
}

func (r *realPod) setPhase(t *testing.T, phase velerov2.Phase) {
	t.Helper()
	r.update(t, func(_ client.Object, now *velerov2.Phase, _ *bool) { *now = phase })
}

func (r *realPod) wantReport(t *testing.T, want datamove.Outcome) datamove.Report {
	t.Helper()
	if err := r.admin.Get(t.Context(), client.ObjectKeyFromObject(r.object), r.object); err != nil {
		t.Fatal(err)
	}
	report, err := datamove.DecodeReport(r.object.GetAnnotations()[datamove.AnnotationReport])
	if err != nil || report.Outcome != want || report.Pod != r.PodUID {
		t.Fatalf("%+v, %v\n%s", report, err, r.output)
	}
	return report
}

// minimal are the verbs that a mover needs.
var minimal = []string{"get", "watch", "patch"}

func TestMover_livesWithItsObject(t *testing.T) {
	t.Parallel()
	s, device := newSite(t), newDevice(t, 64*mib)
	up := s.newRealPod(t, newUpload(block), device, minimal...)
	live := func(r *realPod) datamove.Report {
		ended := r.start(t.Context())
		for _, phase := range []velerov2.Phase{velerov2.PhaseNew, velerov2.PhaseAccepted, velerov2.PhasePrepared, velerov2.PhaseInProgress} {
			select {
			case err := <-ended:
				t.Fatalf("it ended before %s: %v", phase, err)
			default:
			}
			r.setPhase(t, phase)
		}
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		return r.wantReport(t, datamove.Succeeded)
	}
	report := live(up)
	if o, ok := up.object.(*velerov2.DataUpload); !ok || o.Status.Progress != (velerov2.Progress{TotalBytes: 64 * mib, BytesDone: 64 * mib}) || o.Status.Phase != velerov2.PhaseInProgress {
		t.Errorf("%+v", up.object)
	}
	down := s.newRealPod(t, newDownload(block, report.SnapshotID), newDevice(t, 64*mib), minimal...)
	live(down)
	if o, ok := down.object.(*velerov2.DataDownload); !ok || o.Status.Progress != (velerov2.Progress{TotalBytes: 64 * mib, BytesDone: 64 * mib}) {
		t.Errorf("%+v", down.object)
	}
	// A container that is started again has nothing to do.
	before := down.object.GetResourceVersion()
	if err := Run(t.Context(), down.Options); err != nil {
		t.Fatal(err)
	}
	if down.wantReport(t, datamove.Succeeded); down.object.GetResourceVersion() != before {
		t.Error("it has changed an object that it had reported to")
	}
}

func TestMover_isCanceled(t *testing.T) { //nolint:tparallel // its subtests are in a group, which it waits for
	t.Parallel()
	s := newSite(t)
	cancel := func(r *realPod) {
		r.update(t, func(_ client.Object, _ *velerov2.Phase, cancel *bool) { *cancel = true })
	}
	remove := func(r *realPod) {
		if err := r.admin.Delete(t.Context(), r.object); err != nil {
			t.Error(err)
		}
	}
	for name, stop := range map[string]func(*realPod){"canceled": cancel, "deleted": remove} {
		for _, phase := range []velerov2.Phase{"", velerov2.PhasePrepared, velerov2.PhaseInProgress} {
			t.Run(fmt.Sprintf("%s in %q", name, phase), func(t *testing.T) {
				r := s.newRealPod(t, newUpload(block), newDevice(t, mib), minimal...)
				r.Files.Access += ".fifo" // The work hangs.
				makeFIFO(t, r.Files.Access)
				r.setPhase(t, phase)
				ended := r.start(t.Context())
				waitForText(t, r.output, "mover started")
				if phase == velerov2.PhaseInProgress {
					held := awaitReader(t, r.Files.Access)
					t.Cleanup(func() { _ = held.Close() })
				}
				began := time.Now()
				stop(r)
				if err := <-ended; err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took > 10*time.Second {
					t.Errorf("it took %s", took)
				}
				r.wantReport(t, datamove.Canceled)
			})
		}
	}
}

// Others change the object all the time.
func TestMover_reportsInSpiteOfConflicts(t *testing.T) {
	t.Parallel()
	r := newSite(t).newRealPod(t, newUpload(block), newDevice(t, mib), minimal...)
	r.setPhase(t, velerov2.PhaseInProgress)
	ctx, stop := context.WithCancel(t.Context())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for i := 0; ctx.Err() == nil; i++ {
			patch := fmt.Appendf(nil, `{"status":{"message":"%d"}}`, i)
			if err := r.admin.Patch(ctx, newObject(r.Job), client.RawPatch("application/merge-patch+json", patch)); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
			time.Sleep(time.Millisecond)
		}
	}()
	if err := Run(t.Context(), r.Options); err != nil {
		t.Fatal(err)
	}
	stop()
	<-stopped
	r.wantReport(t, datamove.Succeeded)
}

// Another object of the same name is not touched, even by a request that was on its way.
func TestMover_touchesNoOtherObject(t *testing.T) {
	t.Parallel()
	r := newSite(t).newRealPod(t, newUpload(block), newDevice(t, mib), minimal...)
	r.setPhase(t, velerov2.PhasePrepared)
	ended := r.start(t.Context())
	waitForText(t, r.output, "mover started")
	time.Sleep(time.Second)
	r.update(t, func(o client.Object, _ *velerov2.Phase, _ *bool) { o.SetFinalizers(nil) })
	if err := r.admin.Delete(t.Context(), r.object); err != nil {
		t.Fatal(err)
	}
	another := newObject(r.Job)
	r.create(t, another)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	objects, err := newObjectClient(r.Config, r.Job)
	if err != nil {
		t.Fatal(err)
	}
	defer objects.close()
	if o, err := objects.patch(t.Context(), "", nil, map[string]any{"progress": map[string]any{"bytesDone": 1}}); !apierrors.IsConflict(err) && !apierrors.IsInvalid(err) {
		t.Errorf("%+v, %v", o, err)
	}
	before := another.GetResourceVersion()
	if err := r.admin.Get(t.Context(), client.ObjectKeyFromObject(another), another); err != nil || another.GetResourceVersion() != before {
		t.Errorf("it has changed, or %v", err)
	}
}

// Without one of the verbs nothing works, and the last words say so.
func TestMover_saysWhatItMayNot(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, verbs := range [][]string{{}, {"get", "patch"}, {"watch", "patch"}} {
		r := s.newRealPod(t, newUpload(block), newDevice(t, mib), verbs...)
		r.setPhase(t, velerov2.PhaseInProgress)
		r.limits.start = 5 * time.Second
		err := Run(t.Context(), r.Options)
		if err == nil || !strings.Contains(err.Error(), "forbidden") {
			t.Errorf("%v: %v", verbs, err)
		}
	}
	r := s.newRealPod(t, newUpload(block), newDevice(t, mib), "get", "watch")
	r.setPhase(t, velerov2.PhaseInProgress)
	r.limits.report = 5 * time.Second
	if err := Run(t.Context(), r.Options); err == nil || !strings.Contains(err.Error(), "forbidden") {
		t.Error(err)
	}
}
