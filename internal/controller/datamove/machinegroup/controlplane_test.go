//go:build controlplane

package machinegroup

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/controller/datamove/pointdeletion"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/controlplane"
	"github.com/varvebackup/varve/test/gen"
)

var cluster *controlplane.Cluster

func TestMain(m *testing.M) { controlplane.Main(m, &cluster) }

// TestControlPlane runs every test that needs the API server, with the controller's own rights and the cache that it has in a cluster.
func TestControlPlane(t *testing.T) {
	t.Parallel()
	if err := cluster.InstallRoles(t.Context()); err != nil {
		t.Fatal(err)
	}
	mgr := cluster.Manager(t, controlplane.Controller.Restrict(), func(o *ctrl.Options) {
		o.Cache.ByObject = pointdeletion.CachedObjects()
		o.Cache.ByObject[&backupv1.VirtualMachineBackup{}] = cache.ByObject{Label: layout.UnfinishedBackups()}
	})
	if err := Setup(mgr, Options{Namespace: controlplane.SystemNamespace, AuthoritySecret: "varve-export-ca"}); err != nil {
		t.Fatal(err)
	}
	abandoned := endedBackup(t)
	controlplane.StartManager(t, mgr)
	for name, run := range map[string]func(*world){
		"two disks, to the end":           twoDisks,
		"a disk that cannot be stored":    oneFails,
		"the backup ends before its time": backupFails,
		"a volume comes twice":            volumeTwice,
		"served no more":                  servedNoMore,
		"two machines have one name":      twoMachines,
		"the definition is missing":       definitionMissing,
		"the definition goes":             definitionGoes,
		"nobody has seen its backup":      seenByNobody,
		"nobody looked when it ended":     func(w *world) { w.isGone(abandoned) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(&world{T: t, ns: cluster.Namespace(t), admin: cluster.Client(t, controlplane.Admin)})
		})
	}
}

// endedBackup makes the backup of a group that has ended, which the cache does not have, and whose DataUploads are gone.
func endedBackup(t *testing.T) *backupv1.VirtualMachineBackup {
	t.Helper()
	varve := cluster.Client(t, controlplane.Controller)
	root := &velerov2.DataUpload{ObjectMeta: metav1.ObjectMeta{Namespace: controlplane.SystemNamespace}}
	disk := datamove.MachineDisk{Machine: "web", ScratchClaim: "scratch"}
	b := newBackup(&group{namespace: controlplane.SystemNamespace, machines: cluster.Namespace(t), name: "ended", members: []member{{upload: root, disk: disk}}})
	b.Labels = map[string]string{layout.LabelEnded: "true"}
	if err := varve.Create(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	controlplane.Update(t, varve, b, true, func(b *backupv1.VirtualMachineBackup) {
		fail(b)
		b.Status.Phase, b.Status.Conditions[0].LastTransitionTime = backupv1.BackupFailed, metav1.Now()
	})
	return b
}

// world is the namespace of a machine. The tests play the driver, kubelets and the controller of backups.
type world struct {
	*testing.T
	ns    string
	admin client.Client
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// group is the name of the world's group: all are in one namespace.
func (w *world) group() string { return "group-" + w.ns }

// upload makes the DataUpload of a volume, of a group of two.
func (w *world) upload(volume string) *velerov2.DataUpload {
	w.Helper()
	o := w.newUpload(volume)
	w.must(w.admin.Create(w.Context(), o))
	return o
}

func (w *world) newUpload(volume string) *velerov2.DataUpload {
	disk := datamove.MachineDisk{Machine: "web", Volume: volume, ScratchClaim: "scratch", Group: w.group(), Disks: 2}
	return &velerov2.DataUpload{
		ObjectMeta: metav1.ObjectMeta{Namespace: controlplane.SystemNamespace, Name: w.ns + "-" + volume, Finalizers: []string{datamove.Finalizer}},
		Spec: velerov2.DataUploadSpec{
			SnapshotType: velerov2.SnapshotMachineBackup, SourcePVC: volume, SourceNamespace: w.ns, BackupStorageLocation: "default", DataMover: datamove.Mover,
			DataMoverConfig: disk.Config(),
		},
	}
}

// takes plays the driver: the phase of the DataUpload, and what its exposer has noted.
func (w *world) takes(o *velerov2.DataUpload, phase velerov2.Phase, b *backupv1.VirtualMachineBackup) {
	w.Helper()
	controlplane.Update(w.T, w.admin, o, false, func(o *velerov2.DataUpload) {
		o.Status.Phase, o.Status.AcceptedByNode = phase, "node1"
		if b != nil {
			note := datamove.ReadBackup{Backup: b.UID, Moved: phase == velerov2.PhaseCompleted}
			metav1.SetMetaDataAnnotation(&o.ObjectMeta, datamove.AnnotationExposed, note.Encode())
		}
	})
}

// backup waits for the backup of the group.
func (w *world) backup() *backupv1.VirtualMachineBackup {
	w.Helper()
	b := &backupv1.VirtualMachineBackup{}
	controlplane.Eventually(w, func() error {
		return w.admin.Get(w.Context(), client.ObjectKey{Namespace: w.ns, Name: w.group()}, b)
	})
	return b
}

// serves plays the controller of backups and the launcher: the point in time is fixed. It holds the backup as its finalizer does.
func (w *world) serves(b *backupv1.VirtualMachineBackup) {
	w.Helper()
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: w.ns, Name: "tunnel",
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(b, backupv1.GroupVersion.WithKind("VirtualMachineBackup"))},
		},
		Data: map[string][]byte{"token": []byte("secret")},
	}
	w.must(w.admin.Create(w.Context(), secret))
	controlplane.Update(w.T, w.admin, b, false, func(b *backupv1.VirtualMachineBackup) { b.Finalizers = []string{backupv1.BackupFinalizer} })
	controlplane.Update(w.T, cluster.Client(w.T, controlplane.Controller), b, true, func(b *backupv1.VirtualMachineBackup) {
		b.Status.Phase, b.Status.PullTunnelSecret = backupv1.BackupServing, secret.Name
		b.Status.IncludedVolumes = []backupv1.IncludedVolume{{Name: "root"}, {Name: "data"}}
	})
}

// pod makes the mover pod of a DataUpload, which runs at an address.
func (w *world) pod(o *velerov2.DataUpload, address string) *corev1.Pod {
	w.Helper()
	pod := gen.MoverPod(controlplane.SystemNamespace, o.UID)
	w.must(cluster.Client(w.T, controlplane.Controller).Create(w.Context(), pod))
	controlplane.Update(w.T, w.admin, pod, true, func(p *corev1.Pod) {
		p.Status.Phase, p.Status.PodIP, p.Status.PodIPs = corev1.PodRunning, address, []corev1.PodIP{{IP: address}}
	})
	return pod
}

func (w *world) secretOf(pod *corev1.Pod) *corev1.Secret {
	w.Helper()
	s := &corev1.Secret{}
	controlplane.Eventually(w, func() error { return w.admin.Get(w.Context(), client.ObjectKeyFromObject(pod), s) })
	if !metav1.IsControlledBy(s, pod) || string(s.Data[datamove.TunnelTokenKey]) != "secret" || !bytes.Contains(s.Data[datamove.TunnelCertificateKey], []byte("CERTIFICATE")) ||
		!bytes.Contains(s.Data[datamove.TunnelPrivateKey], []byte("PRIVATE KEY")) || len(s.Data[datamove.EndpointEndedKey]) != 0 {
		w.Errorf("%+v", s)
	}
	return s
}

// offers waits until the launcher is told to offer these volumes at these addresses.
func (w *world) offers(b *backupv1.VirtualMachineBackup, want string) {
	w.Helper()
	controlplane.Eventually(w, func() error {
		if err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(b), b); err != nil {
			return err
		}
		var got string
		for _, t := range b.Status.PullTunnels {
			if t.ServerName == "" || t.Authorities == "" {
				return fmt.Errorf("%+v", t)
			}
			got += t.Volume + " " + t.Address + " "
		}
		if got != want {
			return fmt.Errorf("%q, want %q", got, want)
		}
		return nil
	})
}

// ends waits until the backup is deleted, and lets it go. It returns whether it says that all disks are stored.
func (w *world) ends(b *backupv1.VirtualMachineBackup) (stored bool) {
	w.Helper()
	controlplane.Eventually(w, func() error {
		if err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(b), b); err != nil {
			return err
		}
		if b.DeletionTimestamp == nil {
			return fmt.Errorf("it stays: %+v", b.Status)
		}
		return nil
	})
	controlplane.Update(w.T, w.admin, b, false, func(b *backupv1.VirtualMachineBackup) { b.Finalizers = nil })
	return b.Annotations[layout.AnnotationStored] == "true"
}

func twoDisks(w *world) {
	root := w.upload("root")
	w.takes(root, velerov2.PhaseAccepted, nil)
	data := w.upload("data") // which waits for a place
	b := w.backup()
	if b.Spec.MachineName() != "web" || b.Spec.PVCName != "scratch" || !b.Spec.IsPulledByDataUploads() {
		w.Errorf("%+v", b.Spec)
	}
	w.serves(b)
	w.takes(root, velerov2.PhaseAccepted, b)
	w.secretOf(w.pod(root, "10.1.0.1"))
	w.offers(b, "root 10.1.0.1:9090 ")
	w.takes(data, velerov2.PhaseAccepted, b)
	pod := w.pod(data, "10.1.0.2")
	w.secretOf(pod)
	w.offers(b, "data 10.1.0.2:9090 root 10.1.0.1:9090 ")
	// A pod that starts again may have another address.
	controlplane.Update(w.T, w.admin, pod, true, func(p *corev1.Pod) {
		p.Status.PodIP, p.Status.PodIPs = "10.1.0.3", []corev1.PodIP{{IP: "10.1.0.3"}}
	})
	w.takes(data, velerov2.PhaseInProgress, b)
	w.offers(b, "data 10.1.0.3:9090 root 10.1.0.1:9090 ")
	w.takes(root, velerov2.PhaseCompleted, b)
	w.offers(b, "data 10.1.0.3:9090 ")
	w.takes(data, velerov2.PhaseCompleted, b)
	if !w.ends(b) {
		w.Error("the backup does not say that its disks are stored")
	}
	// The moment is over: nobody makes another one.
	w.takes(data, velerov2.PhaseCompleted, b)
	if err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(b), b); !apierrors.IsNotFound(err) {
		w.Errorf("%+v %v", b, err)
	}
}

func oneFails(w *world) {
	root, data := w.upload("root"), w.upload("data")
	w.takes(root, velerov2.PhaseAccepted, nil)
	w.takes(data, velerov2.PhaseAccepted, nil)
	b := w.backup()
	w.serves(b)
	w.takes(data, velerov2.PhaseFailed, b)
	w.takes(root, velerov2.PhaseCompleted, b)
	if w.ends(b) {
		w.Error("the backup says that its disks are stored")
	}
}

func backupFails(w *world) {
	root, data := w.upload("root"), w.upload("data")
	w.takes(root, velerov2.PhaseAccepted, nil)
	b := w.backup()
	w.serves(b)
	w.takes(root, velerov2.PhaseInProgress, b)
	pod := w.pod(root, "10.1.0.4")
	w.secretOf(pod)
	controlplane.Update(w.T, cluster.Client(w.T, controlplane.Controller), b, true, func(b *backupv1.VirtualMachineBackup) {
		fail(b)
		b.Status.Conditions[0].LastTransitionTime = metav1.Now()
	})
	controlplane.Eventually(w, func() error {
		s := &corev1.Secret{}
		if err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(pod), s); err != nil {
			return err
		}
		if want := "VirtualMachineBackup " + w.ns + "/" + w.group() + " has ended: the scratch claim is full"; string(s.Data[datamove.EndpointEndedKey]) != want {
			return fmt.Errorf("%q, want %q", s.Data[datamove.EndpointEndedKey], want)
		}
		return nil
	})
	w.takes(root, velerov2.PhaseFailed, b)
	w.takes(data, velerov2.PhaseFailed, nil)
	if w.ends(b) {
		w.Error("the backup says that its disks are stored")
	}
}

// A DataUpload that joins late, with the volume of another one, keeps nobody from reading.
func volumeTwice(w *world) {
	root, data := w.upload("root"), w.upload("data")
	w.takes(root, velerov2.PhaseAccepted, nil)
	b := w.backup()
	w.serves(b)
	w.takes(root, velerov2.PhaseInProgress, b)
	w.secretOf(w.pod(root, "10.1.0.5"))
	w.offers(b, "root 10.1.0.5:9090 ")
	again := w.newUpload("root")
	again.Name += "-again"
	w.must(w.admin.Create(w.Context(), again))
	w.takes(again, velerov2.PhaseInProgress, b)
	w.secretOf(w.pod(again, "10.1.0.6"))
	w.takes(data, velerov2.PhaseInProgress, b)
	w.secretOf(w.pod(data, "10.1.0.7"))
	w.offers(b, "data 10.1.0.7:9090 root 10.1.0.5:9090 ")
}

// What is taken is driven to its end, also if the settings do not name its namespace any more.
func servedNoMore(w *world) {
	root, b := w.readsInItsNamespace("10.1.0.8")
	w.takes(root, velerov2.PhaseCompleted, b)
	if !w.ends(b) {
		w.Error("the backup does not say that its disks are stored")
	}
}

// readsInItsNamespace makes a DataUpload in the machine's namespace, which is not served, and its backup. Its mover pod reads that.
func (w *world) readsInItsNamespace(address string) (*velerov2.DataUpload, *backupv1.VirtualMachineBackup) {
	w.Helper()
	root := w.newUpload("root")
	root.Namespace = w.ns
	root.Spec.DataMoverConfig[datamove.ConfigDisks] = "1"
	w.must(w.admin.Create(w.Context(), root))
	w.takes(root, velerov2.PhaseAccepted, nil)
	b := newBackup(&group{namespace: w.ns, machines: w.ns, name: w.group(), members: []member{{upload: root, disk: datamove.MachineDisk{Machine: "web", ScratchClaim: "scratch"}}}})
	w.must(cluster.Client(w.T, controlplane.Controller).Create(w.Context(), b))
	w.takes(root, velerov2.PhaseInProgress, b)
	w.serves(b)
	w.secretOf(w.pod(root, address))
	w.offers(b, "root "+address+":9090 ")
	return root, b
}

// Groups of one name for machines of two namespaces are two.
func twoMachines(w *world) {
	root, data := w.upload("root"), w.upload("data")
	w.takes(root, velerov2.PhaseAccepted, nil)
	b := w.backup()
	w.serves(b)
	other := w.newUpload("boot") // which comes first
	other.Spec.SourceNamespace += "-other"
	w.must(w.admin.Create(w.Context(), other))
	w.takes(root, velerov2.PhaseInProgress, b)
	w.secretOf(w.pod(root, "10.1.0.9"))
	w.offers(b, "root 10.1.0.9:9090 ")
	for _, o := range []*velerov2.DataUpload{root, data} {
		w.takes(o, velerov2.PhaseCanceled, b)
	}
	if w.ends(b) {
		w.Error("the backup says that its disks are stored")
	}
}

// The backup of a group whose DataUploads were deleted goes, also if nobody has seen it and another machine's DataUpload has the group's name.
func seenByNobody(w *world) {
	root, data := w.upload("root"), w.upload("data")
	w.takes(root, velerov2.PhaseAccepted, nil)
	b := w.backup()
	other := w.newUpload("boot")
	other.Spec.SourceNamespace += "-other"
	w.must(w.admin.Create(w.Context(), other))
	w.deletes(root)
	w.deletes(data)
	w.isGone(b)
}

// deletes plays somebody who deletes a DataUpload, and its driver.
func (w *world) deletes(o *velerov2.DataUpload) {
	w.Helper()
	w.must(w.admin.Delete(w.Context(), o))
	controlplane.Update(w.T, w.admin, o, false, func(o *velerov2.DataUpload) { o.Finalizers = nil })
}

// isGone waits until a backup that nothing holds is gone.
func (w *world) isGone(b *backupv1.VirtualMachineBackup) {
	w.Helper()
	controlplane.Eventually(w, func() error {
		if err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(b), b); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it stays: %+v %w", b.Status, err)
		}
		return nil
	})
}

const (
	definitionUID  = "7f2ad3c4-0b1e-4c55-9e0f-2d6a1b3c4d5e"
	definitionText = `{"vm":"web","password":"hunter2"}`
)

// defined makes the DataUploads of the group, which name a definition.
func (w *world) defined(uid string) (root, data *velerov2.DataUpload) {
	w.Helper()
	root, data = w.newUpload("root"), w.newUpload("data")
	for _, o := range []*velerov2.DataUpload{root, data} {
		o.Spec.DataMoverConfig[datamove.ConfigDefinition] = uid
		w.must(w.admin.Create(w.Context(), o))
	}
	return root, data
}

// define makes the Secret with the definition.
func (w *world) define(uid string, kind corev1.SecretType) *corev1.Secret {
	w.Helper()
	s := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: controlplane.SystemNamespace, Name: datamove.DefinitionSecret(uid)},
		Type:       kind,
		Data:       map[string][]byte{datamove.DefinitionKey: []byte(definitionText)},
	}
	w.must(w.admin.Create(w.Context(), s))
	return s
}

// warned waits for an event of a DataUpload that says why the definition cannot be had.
func (w *world) warned(o *velerov2.DataUpload, reason, why string) {
	w.Helper()
	controlplane.Eventually(w, func() error {
		var list eventsv1.EventList
		if err := w.admin.List(w.Context(), &list, client.InNamespace(o.Namespace)); err != nil {
			return err
		}
		for i := range list.Items {
			e := &list.Items[i]
			if strings.Contains(e.Note, "hunter2") {
				w.Errorf("an event has secrets: %s", e.Note)
			}
			if e.Regarding.UID == o.UID && e.Type == corev1.EventTypeWarning && e.Reason == reason &&
				strings.Contains(e.Note, why) {
				return nil
			}
		}
		return fmt.Errorf("no event of %s says %q", o.Name, why)
	})
}

// No backup is made without the definition that the DataUploads name, and a Secret of another type is none.
func definitionMissing(w *world) {
	const uid = "00000000-0b1e-4c55-9e0f-2d6a1b3c4d5e"
	root, data := w.defined(uid)
	w.takes(root, velerov2.PhaseAccepted, nil)
	name := controlplane.SystemNamespace + "/" + datamove.DefinitionSecret(uid)
	for _, o := range []*velerov2.DataUpload{root, data} {
		w.warned(o, eventDefinitionMissing, "Secret "+name+" with the definition of the machine does not exist")
	}
	other := w.define(uid, corev1.SecretTypeOpaque)
	w.takes(data, velerov2.PhaseAccepted, nil) // so that the controller looks
	w.warned(root, eventDefinitionInvalid, "Secret "+name+` has the type "Opaque"`)
	err := w.admin.Get(w.Context(), client.ObjectKey{Namespace: w.ns, Name: w.group()},
		&backupv1.VirtualMachineBackup{})
	if !apierrors.IsNotFound(err) {
		w.Errorf("there is a backup: %v", err)
	}
	w.must(w.admin.Delete(w.Context(), other))
	w.define(uid, datamove.DefinitionSecretType)
	w.takes(data, velerov2.PhasePrepared, nil)
	b := w.backup()
	w.serves(b)
	w.takes(root, velerov2.PhaseInProgress, b)
	if s := w.secretOf(w.pod(root, "10.1.0.10")); string(s.Data[datamove.DefinitionKey]) != definitionText {
		w.Errorf("the mover pod has the definition %q", s.Data[datamove.DefinitionKey])
	}
}

// A pod keeps the definition that it was given. One that comes when the definition has gone gets nothing, and its launcher does not connect.
func definitionGoes(w *world) {
	definition := w.define(definitionUID, datamove.DefinitionSecretType)
	root, data := w.defined(definitionUID)
	w.takes(root, velerov2.PhaseAccepted, nil)
	b := w.backup()
	w.serves(b)
	w.takes(root, velerov2.PhaseInProgress, b)
	first := w.pod(root, "10.1.0.11")
	w.secretOf(first)
	w.offers(b, "root 10.1.0.11:9090 ")
	w.must(w.admin.Delete(w.Context(), definition))
	second := w.pod(data, "10.1.0.12")
	w.takes(data, velerov2.PhaseInProgress, b)
	w.warned(data, eventDefinitionMissing, "does not exist")
	w.offers(b, "root 10.1.0.11:9090 ")
	if s := w.secretOf(first); string(s.Data[datamove.DefinitionKey]) != definitionText {
		w.Errorf("the mover pod that reads has the definition %q", s.Data[datamove.DefinitionKey])
	}
	if err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(second),
		&corev1.Secret{}); !apierrors.IsNotFound(err) {
		w.Errorf("a pod without a definition has its Secret: %v", err)
	}
}
