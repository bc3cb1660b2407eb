//go:build controlplane

package keep

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/controller/datamove/pointdeletion"
	"github.com/varvebackup/varve/internal/controller/keep/condition"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/test/controlplane"
	"github.com/varvebackup/varve/test/gen"
)

var cluster *controlplane.Cluster

func TestMain(m *testing.M) { controlplane.Main(m, &cluster) }

// shelf is the default location, and away one that does not answer.
const (
	shelf = "shelf"
	away  = "away"
)

// TestControlPlane runs both controllers with the rights and the cache that they have in a cluster. The tests play
// handlers, kubelets and the controller of machines.
func TestControlPlane(t *testing.T) { //nolint:paralleltest // one after the other: both serve all namespaces
	runScenarios(t)
}

// TestControlPlane_diesAtEachWrite is TestControlPlane with a controller that dies after a third of its writes, others in
// each run, and goes on with what the API server has.
func TestControlPlane_diesAtEachWrite(t *testing.T) { //nolint:paralleltest // see above
	runScenarios(t, controlplane.LoseAnswers(t))
}

// scenarios are those of Varve's own runtime.
var scenarios = map[string]func(*world){
	"a backup, to the end":                    backedUp,
	"a backup whose disk fails":               diskFails,
	"a backup whose DataUpload is deleted":    uploadDeleted,
	"a backup that waits for its location":    locationAway,
	"backups that are refused":                refused,
	"a backup that is deleted while it runs":  deletedEarly,
	"a backup whose namespace is deleted":     namespaceDeleted,
	"a stopped machine, to the end":           stoppedBackedUp,
	"a machine that is started while read":    startedWhileRead,
	"a stopped machine whose disk is written": writtenWhileRead,
	"a stopped machine that waits":            stoppedWaits,
	"a stopped machine, and a deletion":       stoppedDeleted,
	"a snapshot of a running machine":         snapshotTaken,
	"a snapshot of a stopped machine":         snapshotStopped,
	"snapshots that fail":                     snapshotFails,
	"a restored snapshot":                     snapshotRestored,
	"a machine replaced by a snapshot":        snapshotReplaced,
	"snapshots that are not restored":         snapshotNotRestored,
	"a restore, to the end":                   restored,
	"a restore that leaves the machine alone": halted,
	"a machine that starts on request":        startsOnRequest,
	"a restore whose name is taken":           nameTaken,
	"a restore whose disk fails":              downloadFails,
	"a machine that does not start":           doesNotStart,
	"a replaced machine":                      replaced,
	"a replaced machine with other disks":     replacedOtherwise,
	"a replaced machine that is changed back": changedBack,
	"a replaced machine's old claims":         replacedClaims,
	"a replaced machine that was stopped":     replacedRunning,
	"what is not replaced":                    notReplaced,
	"a machine that is started meanwhile":     startedMeanwhile,
	"what is not accepted":                    notAccepted,
	"a Secret that comes back":                secretComesBack,
	"a Secret whose name another one has":     secretOfAnother,
	"a definition that cannot be read":        definitionUnreadable,
	"a backup that is found":                  found,
	"a backup that is not found":              notFound,
	"a backup of another namespace":           anotherNamespace,
}

func runScenarios(t *testing.T, edit ...func(*ctrl.Options)) {
	t.Helper()
	runControllers(t, Options{}, scenarios, edit...)
}

// runControllers runs scenarios one beside another, with controllers that have these options.
func runControllers(t *testing.T, options Options, scenarios map[string]func(*world), edit ...func(*ctrl.Options)) {
	t.Helper()
	if err := errors.Join(cluster.InstallRoles(t.Context()), cluster.InstallSnapshotKinds(t.Context())); err != nil {
		t.Fatal(err)
	}
	mgr := cluster.Manager(t, controlplane.Controller.Restrict(),
		append(edit, func(o *ctrl.Options) { o.Cache.ByObject = pointdeletion.CachedObjects() })...)
	options.Namespace = controlplane.SystemNamespace
	if err := Setup(mgr, options); err != nil {
		t.Fatal(err)
	}
	controlplane.StartManager(t, mgr)
	admin := cluster.Client(t, controlplane.Admin)
	for name, phase := range map[string]velerov1.BackupStorageLocationPhase{shelf: velerov1.LocationAvailable, away: velerov1.LocationUnavailable} {
		l := &velerov1.BackupStorageLocation{
			ObjectMeta: metav1.ObjectMeta{Namespace: controlplane.SystemNamespace, Name: name},
			Spec: velerov1.BackupStorageLocationSpec{
				Provider: "aws", Default: name == shelf,
				Config:      map[string]string{"s3Url": "https://s3.lan", "region": "here"},
				StorageType: velerov1.StorageType{ObjectStorage: &velerov1.ObjectStorageLocation{Bucket: "b"}},
			},
			Status: velerov1.BackupStorageLocationStatus{Phase: phase, Message: "nobody listens there"},
		}
		if err := admin.Create(t.Context(), l); client.IgnoreAlreadyExists(err) != nil {
			t.Fatal(err)
		}
	}
	for name, run := range scenarios {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(&world{T: t, ns: cluster.Namespace(t), admin: admin, varve: cluster.Client(t, controlplane.Controller)})
		})
	}
}

// world is a namespace with a machine.
type world struct {
	*testing.T
	ns           string
	admin, varve client.Client
	// definition is the one that the latest backup had stored.
	definition []byte
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: w.ns, Name: name}
}

func (w *world) create(o client.Object) {
	w.Helper()
	w.must(w.admin.Create(w.Context(), o))
}

// wait waits until an object is there and as check wants it.
func wait[T client.Object](w *world, o T, check func(T) error) T {
	w.Helper()
	controlplane.Eventually(w, func() error {
		if err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		return check(o)
	})
	return o
}

func exists[T client.Object](T) error { return nil }

func isPlanned(b *harvesterv1.VirtualMachineBackup) error {
	if b.Status.Group == "" {
		return fmt.Errorf("nothing is planned: %+v", b.Status)
	}
	return nil
}

func isReady(b *harvesterv1.VirtualMachineBackup) error {
	if !b.IsReady() {
		return fmt.Errorf("status %+v", b.Status)
	}
	return nil
}

// stored ends the uploads of a backup well, and waits until it is ready.
func (w *world) stored(b *harvesterv1.VirtualMachineBackup, uploads map[string]*velerov2.DataUpload) {
	w.Helper()
	for _, u := range uploads {
		w.ends(u, velerov2.PhaseCompleted, "")
	}
	wait(w, b, isReady)
}

func (w *world) gone(o client.Object) {
	w.Helper()
	controlplane.Eventually(w, func() error {
		err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(o), o)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("%T %s is there: %w", o, o.GetName(), err)
	})
}

// deleted waits until a claim is deleted. Nobody takes the finalizer of a claim in use away here.
func (w *world) deleted(name string) {
	w.Helper()
	controlplane.Eventually(w, func() error {
		c := &corev1.PersistentVolumeClaim{ObjectMeta: w.meta(name)}
		if err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(c), c); err != nil {
			return client.IgnoreNotFound(err)
		}
		if c.DeletionTimestamp == nil {
			return fmt.Errorf("claim %s is there", name)
		}
		return nil
	})
}

// running makes a machine that runs, with the disks root and data, a shared disk, and one that its guest does not have
// yet.
func (w *world) running() *kubevirtv1.VirtualMachine {
	w.Helper()
	vm, guest := w.machine(kubevirtv1.RunStrategyAlways)
	w.start(guest)
	return vm
}

// start makes the instance of a machine, which runs.
func (w *world) start(guest kubevirtv1.VirtualMachineInstanceSpec) *kubevirtv1.VirtualMachineInstance {
	w.Helper()
	vmi := gen.VirtualMachineInstance(w.meta("web"), guest)
	w.must(w.varve.Create(w.Context(), vmi))
	controlplane.Update(w.T, w.varve, vmi, true, func(i *kubevirtv1.VirtualMachineInstance) {
		i.Status.Phase = kubevirtv1.PhaseRunning
		i.Status.ChangedBlockTracking = &kubevirtv1.ChangedBlockTrackingStatus{State: kubevirtv1.ChangedBlockTrackingEnabled}
		i.Status.Interfaces = []kubevirtv1.InterfaceStatus{{Name: "default", MAC: "02:00:00:00:00:07"}}
	})
	return vmi
}

// machine makes a machine with the disks root and data, a shared disk, and one that it got later, and returns the guest
// without that one.
func (w *world) machine(strategy kubevirtv1.RunStrategy) (*kubevirtv1.VirtualMachine, kubevirtv1.VirtualMachineInstanceSpec) {
	w.Helper()
	disks := []func(*kubevirtv1.VirtualMachineInstanceSpec){
		gen.Disk("root", "web-root"),
		gen.Disk("data", "web-data"), gen.Disk("shared", "web-shared",
			func(d *kubevirtv1.Disk) { d.Shareable = ptr.To(true) }),
	}
	for _, name := range []string{"web-root", "web-data", "web-shared"} {
		w.create(gen.Claim(w.meta(name), gen.SetSize("1Gi"), gen.SetVolumeMode(corev1.PersistentVolumeFilesystem)))
	}
	addNetwork := func(s *kubevirtv1.VirtualMachineInstanceSpec) {
		s.Networks = []kubevirtv1.Network{{Name: "default", Pod: &kubevirtv1.PodNetwork{}}}
		s.Domain.Devices.Interfaces = []kubevirtv1.Interface{{
			Name:       "default",
			Masquerade: &kubevirtv1.InterfaceMasquerade{},
		}}
		s.Domain.Firmware = &kubevirtv1.Firmware{KernelBoot: &kubevirtv1.KernelBoot{Container: &kubevirtv1.KernelBootContainer{Image: "k", KernelPath: "/k", ImagePullSecret: "pull"}}}
	}
	guest := gen.Guest(append(disks, addNetwork)...)
	vm := gen.VirtualMachine(w.meta("web"), gen.Guest(append(disks, addNetwork, gen.Disk("later", "web-later"))...),
		gen.SetRunStrategy(strategy))
	vm.Labels = map[string]string{"tier": "front"}
	w.create(vm)
	w.create(&corev1.Secret{ObjectMeta: w.meta("pull"), Data: map[string][]byte{"key": []byte("hidden words")}})
	return vm, guest
}

func (w *world) newBackup(name string, annotations map[string]string) *harvesterv1.VirtualMachineBackup {
	b := &harvesterv1.VirtualMachineBackup{
		ObjectMeta: w.meta(name),
		Spec:       harvesterv1.VirtualMachineBackupSpec{Source: *gen.Source("web")},
	}
	b.Annotations = annotations
	return b
}

// uploads waits for the DataUploads of a backup.
func (w *world) uploads(b *harvesterv1.VirtualMachineBackup) map[string]*velerov2.DataUpload {
	w.Helper()
	wait(w, b, func(b *harvesterv1.VirtualMachineBackup) error {
		if len(b.Status.VolumeBackups) == 0 {
			return fmt.Errorf("nothing is planned: %+v", b.Status)
		}
		return nil
	})
	all := map[string]*velerov2.DataUpload{}
	for _, v := range b.Status.VolumeBackups {
		u := &velerov2.DataUpload{ObjectMeta: metav1.ObjectMeta{
			Namespace: b.Status.Location.Namespace,
			Name:      v.DataUpload,
		}}
		all[v.VolumeName] = wait(w, u, exists)
	}
	return all
}

// ends plays the handler: a DataUpload ends.
func (w *world) ends(u *velerov2.DataUpload, phase velerov2.Phase, message string) {
	w.Helper()
	id, err := datamove.PointID(u.UID)
	w.must(err)
	controlplane.Update(w.T, w.admin, u, false, func(u *velerov2.DataUpload) {
		u.Status.Phase, u.Status.Message = phase, message
		u.Status.Progress = velerov2.Progress{TotalBytes: 1 << 30, BytesDone: 1 << 30}
		if phase == velerov2.PhaseCompleted {
			u.Status.SnapshotID = datamove.SnapshotID{Form: datamove.Disk, Point: id, Namespace: w.ns}.String()
			u.Status.IncrementalBytes, u.Status.CompletionTimestamp = 4096, ptr.To(metav1.Now())
		}
	})
}

// says waits until a condition of the backup is so, with these words.
func says(of harvesterv1.ConditionType, status corev1.ConditionStatus, reason, words string) func([]harvesterv1.Condition) error {
	return func(all []harvesterv1.Condition) error {
		c := condition.Find(all, of)
		if c == nil || c.Status != status || c.Reason != reason || !strings.Contains(c.Message, words) {
			return fmt.Errorf("condition %+v, want %s %s %q", c, status, reason, words)
		}
		return nil
	}
}

func (w *world) backupSays(b *harvesterv1.VirtualMachineBackup, check func([]harvesterv1.Condition) error) {
	w.Helper()
	wait(w, b, func(b *harvesterv1.VirtualMachineBackup) error { return check(b.Status.Conditions) })
}

func (w *world) restoreSays(r *harvesterv1.VirtualMachineRestore, check func([]harvesterv1.Condition) error) {
	w.Helper()
	wait(w, r, func(r *harvesterv1.VirtualMachineRestore) error { return check(r.Status.Conditions) })
}

// ready makes a backup that is ready, of a machine that is gone.
func (w *world) ready(name string) *harvesterv1.VirtualMachineBackup {
	w.Helper()
	b, vm := w.readyOfMachine(name)
	w.must(w.admin.Delete(w.Context(), vm))
	w.gone(vm)
	return b
}

// readyOfMachine makes a backup that is ready, of a machine that runs.
func (w *world) readyOfMachine(name string) (*harvesterv1.VirtualMachineBackup, *kubevirtv1.VirtualMachine) {
	w.Helper()
	vm := w.running()
	return w.makeReady(name), vm
}

// makeReady makes a backup of the machine that is there, and plays its mover pods to the end.
func (w *world) makeReady(name string) *harvesterv1.VirtualMachineBackup {
	w.Helper()
	b := w.newBackup(name, nil)
	w.create(b)
	all := w.uploads(b)
	secret := wait(w, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: controlplane.SystemNamespace, Name: datamove.DefinitionSecret(string(b.UID)),
	}}, exists)
	w.definition = secret.Data[datamove.DefinitionKey]
	w.stored(b, all)
	return b
}
