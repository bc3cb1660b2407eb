//go:build controlplane

package endpointaccess

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/controller/datamove/pointdeletion"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/test/controlplane"
	"github.com/varvebackup/varve/test/gen"
)

var cluster *controlplane.Cluster

func TestMain(m *testing.M) { controlplane.Main(m, &cluster) }

// TestControlPlane runs the controller with the rights that it has in a cluster.
func TestControlPlane(t *testing.T) {
	t.Parallel()
	if err := cluster.InstallRoles(t.Context()); err != nil {
		t.Fatal(err)
	}
	mgr := cluster.Manager(t, controlplane.Controller.Restrict(), func(o *ctrl.Options) { o.Cache.ByObject = pointdeletion.CachedObjects() }) // as package controller does
	if err := Setup(mgr, Options{Namespace: controlplane.SystemNamespace}); err != nil {
		t.Fatal(err)
	}
	controlplane.StartManager(t, mgr)
	for name, run := range map[string]func(*world){
		"a pod gets its Secret":             givesSecret,
		"what the backup lacks":             tellsWhatIsMissing,
		"the backup ends":                   tellsEnd,
		"nobody else gets one":              givesNothingElse,
		"a backup that was read is deleted": deletesBackup,
		"a pod that reads an export":        givesExportSecret,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(newWorld(t))
		})
	}
}

// world is a tenant with a backup.
type world struct {
	*testing.T
	ns     string
	varve  string // Varve's own namespace
	admin  client.Client
	backup *backupv1.VirtualMachineBackup
	token  *corev1.Secret
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, ns: cluster.Namespace(t), varve: controlplane.SystemNamespace, admin: cluster.Client(t, controlplane.Admin)}
	w.token = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "token"}, Data: map[string][]byte{"token": []byte("first")}}
	w.backup = &backupv1.VirtualMachineBackup{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "web-1"},
		Spec:       backupv1.VirtualMachineBackupSpec{BackupTracker: "daily", Mode: backupv1.PullMode, PVCName: "scratch", TokenSecretRef: ptr.To(w.token.Name)},
	}
	w.create(w.token)
	w.create(w.backup)
	w.editBackup(func(b *backupv1.VirtualMachineBackup) {
		b.Status.Cert = "authority 1"
		b.Status.IncludedVolumes = []backupv1.IncludedVolume{{Name: "root"}, {Name: "data"}}
	})
	w.setReady(metav1.ConditionTrue)
	return w
}

func (w *world) create(o client.Object) {
	w.Helper()
	if err := w.admin.Create(w.Context(), o); err != nil {
		w.Fatal(err)
	}
}

func (w *world) editBackup(edit func(*backupv1.VirtualMachineBackup)) {
	w.Helper()
	controlplane.Update(w.T, cluster.Client(w.T, controlplane.Controller), w.backup, true, edit)
}

func (w *world) setReady(status metav1.ConditionStatus) {
	w.Helper()
	w.editBackup(func(b *backupv1.VirtualMachineBackup) {
		meta.SetStatusCondition(&b.Status.Conditions, metav1.Condition{Type: backupv1.ConditionReady, Status: status, Reason: "Test"})
	})
}

// upload creates a DataUpload of a volume as its driver leaves it once its exposer has seen the backup.
func (w *world) upload(volume string, edit func(*velerov2.DataUpload)) *velerov2.DataUpload {
	w.Helper()
	o := &velerov2.DataUpload{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: w.varve, Name: w.ns + "-" + volume, Finalizers: []string{datamove.Finalizer},
			Annotations: map[string]string{datamove.AnnotationExposed: datamove.ReadBackup{Backup: w.backup.UID}.Encode()},
		},
		Spec: velerov2.DataUploadSpec{
			SnapshotType: velerov2.SnapshotMachineBackup, SourcePVC: "data", SourceNamespace: w.ns, BackupStorageLocation: "default", DataMover: datamove.Mover,
			DataMoverConfig: map[string]string{datamove.ConfigSource: datamove.SourceEndpoints, datamove.ConfigBackup: w.backup.Name, datamove.ConfigVolume: volume},
		},
		Status: velerov2.DataUploadStatus{Phase: velerov2.PhaseAccepted, AcceptedByNode: "node-1"},
	}
	if edit != nil {
		edit(o)
	}
	w.create(o)
	return o
}

// pod creates the mover pod of a DataUpload.
func (w *world) pod(o *velerov2.DataUpload, edit func(*corev1.Pod)) *corev1.Pod {
	w.Helper()
	p := gen.MoverPod(w.varve, o.UID)
	p.Annotations = map[string]string{datamove.AnnotationOwner: "DataUpload/" + client.ObjectKeyFromObject(o).String()}
	if edit != nil {
		edit(p)
	}
	// Others may not set the label, but for Kubernetes on the pods of Jobs, which need not be movers.
	maker := controlplane.Controller
	if edit != nil {
		maker = controlplane.User{Name: "system:serviceaccount:kube-system:job-controller"}
	}
	if err := cluster.Client(w.T, maker).Create(w.Context(), p); err != nil {
		w.Fatal(err)
	}
	return p
}

// touch has the controller look at a DataUpload again.
func (w *world) touch(o *velerov2.DataUpload) {
	w.Helper()
	controlplane.Update(w.T, w.admin, o, false, func(o *velerov2.DataUpload) {
		o.Status.AcceptedByNode = fmt.Sprint("node-", time.Now().UnixNano())
	})
}

func (w *world) secret(o *velerov2.DataUpload) (*corev1.Secret, error) {
	var s corev1.Secret
	key := client.ObjectKey{Namespace: w.varve, Name: datamove.ChildName(datamove.Upload, o.UID)}
	return &s, w.admin.Get(w.Context(), key, &s)
}

// secretBecomes waits until the Secret of a pod has this content.
func (w *world) secretBecomes(o *velerov2.DataUpload, pod *corev1.Pod, token, authorities string) {
	w.Helper()
	controlplane.Eventually(w, func() error {
		s, err := w.secret(o)
		if err != nil {
			return err
		}
		if _, ok := s.Data[datamove.EndpointEndedKey]; !ok || len(s.Data[datamove.EndpointEndedKey]) > 0 || string(s.Data[datamove.EndpointTokenKey]) != token || string(s.Data[datamove.EndpointAuthoritiesKey]) != authorities || len(s.Data) != 3 {
			return fmt.Errorf("the Secret has %q", s.Data)
		}
		if !metav1.IsControlledBy(s, pod) || s.Labels[datamove.LabelObject] != string(o.UID) {
			return fmt.Errorf("%+v", s.ObjectMeta)
		}
		return nil
	})
}

func givesSecret(w *world) {
	o := w.upload("root", nil)
	pod := w.pod(o, nil)
	w.secretBecomes(o, pod, "first", "authority 1")
	w.editBackup(func(b *backupv1.VirtualMachineBackup) { b.Status.Cert = "authorities 1 and 2" })
	w.secretBecomes(o, pod, "first", "authorities 1 and 2")
	controlplane.Update(w.T, w.admin, w.token, false, func(s *corev1.Secret) { s.Data["token"] = []byte("second") })
	w.touch(o)
	w.secretBecomes(o, pod, "second", "authorities 1 and 2")
	// KubeVirt 1.8 has it under another name.
	w.editBackup(func(b *backupv1.VirtualMachineBackup) { b.Status.Cert, b.Status.EndpointCert = "", "its authority" })
	w.secretBecomes(o, pod, "second", "its authority")
}

func tellsWhatIsMissing(w *world) {
	o := w.upload("root", nil)
	pod := w.pod(o, nil)
	w.secretBecomes(o, pod, "first", "authority 1")
	if err := w.admin.Delete(w.Context(), w.token); err != nil {
		w.Fatal(err)
	}
	w.touch(o)
	controlplane.Eventually(w, func() error {
		var list eventsv1.EventList
		if err := w.admin.List(w.Context(), &list, client.InNamespace(controlplane.SystemNamespace)); err != nil {
			return err
		}
		for i := range list.Items {
			if e := &list.Items[i]; e.Regarding.UID == pod.UID && strings.Contains(e.Note, "Secret "+w.ns+"/token does not exist") && e.Type == corev1.EventTypeWarning {
				return nil
			}
		}
		return fmt.Errorf("no event among %d", len(list.Items))
	})
	w.token.ResourceVersion, w.token.UID, w.token.Data = "", "", map[string][]byte{"token": []byte("third")}
	w.create(w.token)
	w.touch(o)
	w.secretBecomes(o, pod, "third", "authority 1")
}

func tellsEnd(w *world) {
	for name, c := range map[string]struct {
		end  func(*world)
		says string
	}{
		"deleted": {func(w *world) {
			if err := w.admin.Delete(w.Context(), w.backup); err != nil {
				w.Fatal(err)
			}
		}, "was deleted"},
		"failed": {func(w *world) {
			w.editBackup(func(b *backupv1.VirtualMachineBackup) {
				meta.SetStatusCondition(&b.Status.Conditions, metav1.Condition{Type: backupv1.ConditionFailed, Status: metav1.ConditionTrue, Reason: "ScratchFull"})
			})
		}, "has ended: ScratchFull"},
	} {
		sub := newWorld(w.T)
		o := sub.upload("root", nil)
		sub.secretBecomes(o, sub.pod(o, nil), "first", "authority 1")
		c.end(sub)
		want := "VirtualMachineBackup " + sub.ns + "/web-1 " + c.says
		controlplane.Eventually(w, func() error {
			s, err := sub.secret(o)
			if err == nil && string(s.Data[datamove.EndpointEndedKey]) != want {
				err = fmt.Errorf("%s: the Secret says %q, want %q", name, s.Data[datamove.EndpointEndedKey], want)
			}
			return err
		})
	}
}

// givesNothingElse checks all sequences by which somebody might get the token of somebody else.
func givesNothingElse(w *world) {
	other := cluster.Namespace(w.T)
	for name, c := range map[string]struct {
		upload func(*velerov2.DataUpload)
		pod    func(*corev1.Pod)
	}{
		"a namespace that is not served": {func(o *velerov2.DataUpload) { o.Namespace = other }, nil},
		"another data mover":             {func(o *velerov2.DataUpload) { o.Spec.DataMover = "other" }, nil},
		"Velero's own":                   {func(o *velerov2.DataUpload) { o.Spec.DataMover = "" }, nil},
		"nobody has taken it":            {func(o *velerov2.DataUpload) { o.Status.AcceptedByNode = "" }, nil},
		"it is New":                      {func(o *velerov2.DataUpload) { o.Status.Phase = velerov2.PhaseNew }, nil},
		"it is over":                     {func(o *velerov2.DataUpload) { o.Status.Phase = velerov2.PhaseFailed }, nil},
		"it is canceled":                 {func(o *velerov2.DataUpload) { o.Spec.Cancel = true }, nil},
		"no exposer has seen the backup": {func(o *velerov2.DataUpload) { o.Annotations = nil }, nil},
		"a backup of before": {func(o *velerov2.DataUpload) {
			o.Annotations[datamove.AnnotationExposed] = datamove.ReadBackup{Backup: "before"}.Encode()
		}, nil},
		"another source":   {func(o *velerov2.DataUpload) { delete(o.Spec.DataMoverConfig, datamove.ConfigSource) }, nil},
		"a CSI snapshot":   {func(o *velerov2.DataUpload) { o.Spec.SnapshotType = velerov2.SnapshotCSI }, nil},
		"another account":  {nil, func(p *corev1.Pod) { p.Spec.ServiceAccountName = "default" }},
		"a pod of another": {nil, func(p *corev1.Pod) { p.Labels[datamove.LabelObject] = "other" }},
	} {
		o := w.upload("root", func(o *velerov2.DataUpload) {
			o.Name = w.ns + "-" + strings.ToLower(strings.ReplaceAll(strings.ReplaceAll(name, " ", "-"), "'", ""))
			if c.upload != nil {
				c.upload(o)
			}
		})
		w.pod(o, c.pod)
		defer func() {
			if s, err := w.secret(o); !apierrors.IsNotFound(err) {
				w.Errorf("%s: %v, %v", name, s.Data, err)
			}
		}()
	}
	last := w.upload("root", nil) // which comes last, so that the others had their turn
	w.secretBecomes(last, w.pod(last, nil), "first", "authority 1")
	time.Sleep(2 * soon)
}

func deletesBackup(w *world) {
	exists := func() bool {
		err := w.admin.Get(context.WithoutCancel(w.Context()), client.ObjectKeyFromObject(w.backup), w.backup)
		if client.IgnoreNotFound(err) != nil {
			w.Fatal(err)
		}
		return err == nil && w.backup.DeletionTimestamp == nil
	}
	stays := func(why string) {
		w.Helper()
		controlplane.Consistently(w, time.Second, func() error {
			if !exists() {
				return fmt.Errorf("the backup was deleted: %s", why)
			}
			return nil
		})
	}
	complete := func(o *velerov2.DataUpload) {
		w.Helper()
		controlplane.Update(w.T, w.admin, o, false, func(o *velerov2.DataUpload) {
			o.Annotations[datamove.AnnotationExposed] = datamove.ReadBackup{Backup: w.backup.UID, Moved: true}.Encode()
			o.Status.Phase = velerov2.PhaseCompleted
		})
	}
	root := w.upload("root", func(o *velerov2.DataUpload) { o.Spec.DataMoverConfig[datamove.ConfigDeleteBackup] = "true" })
	data := w.upload("data", nil)
	complete(root)
	stays("a disk is not stored")
	w.setReady(metav1.ConditionFalse)
	complete(data)
	stays("the deletion would be no success")
	w.setReady(metav1.ConditionTrue)
	controlplane.Eventually(w, func() error {
		if exists() {
			return fmt.Errorf("the backup is still there")
		}
		return nil
	})
}
