package kubevirtbackup

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/gen"
)

// epoch is when time begins in the tests' worlds.
var epoch = time.Date(2026, 3, 3, 16, 13, 28, 0, time.UTC)

// world is an in-memory cluster for decisions: one machine, its objects, and a clock. perform does to it what apply
// does to the API server.
type world struct {
	now      time.Time
	limits   Limits
	backups  []*backupv1.VirtualMachineBackup
	tracker  *backupv1.VirtualMachineBackupTracker
	vm       *kubevirtv1.VirtualMachine
	instance *kubevirtv1.VirtualMachineInstance
	claim    *corev1.PersistentVolumeClaim
	users    []claimUser
	watchdog *watchdog
	serial   int
	// configuration has every feature gate.
	configuration *kubevirtv1.KubeVirt
	load          nodeLoad
	// key and token are the Secrets that backups in pull mode need.
	key     []byte
	token   *corev1.Secret
	secrets map[string]*corev1.Secret
	exports map[string]*exportv1.VirtualMachineExport
}

func newWorld() *world {
	w := &world{now: epoch, limits: DefaultLimits(), watchdog: newWatchdog()}
	w.vm = &kubevirtv1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "vm", UID: "vm-1"}}
	w.claim = w.newClaim()
	w.configuration = &kubevirtv1.KubeVirt{}
	w.configuration.Spec.Configuration.DeveloperConfiguration = &kubevirtv1.DeveloperConfiguration{FeatureGates: []string{kubevirtv1.IncrementalBackup, kubevirtv1.UtilityVolumes, kubevirtv1.VMExport}}
	w.key = []byte("the key of the installation")
	w.token = &corev1.Secret{Data: map[string][]byte{"token": []byte("the clients' token")}}
	w.secrets, w.exports = map[string]*corev1.Secret{}, map[string]*exportv1.VirtualMachineExport{}
	w.boot()
	return w
}

func (w *world) newClaim() *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "target", UID: w.uid()},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeMode: ptr.To(corev1.PersistentVolumeFilesystem)},
	}
}

func (w *world) uid() types.UID {
	w.serial++
	return types.UID(fmt.Sprintf("%08x-0000-0000-0000-000000000000", w.serial))
}

// boot gives the machine a new running instance.
func (w *world) boot() {
	w.instance = &kubevirtv1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "vm", UID: w.uid()},
		Spec:       diskSpec(),
		Status: kubevirtv1.VirtualMachineInstanceStatus{
			Phase: kubevirtv1.PhaseRunning, NodeName: "node",
			ChangedBlockTracking: &kubevirtv1.ChangedBlockTrackingStatus{State: kubevirtv1.ChangedBlockTrackingEnabled},
		},
	}
}

func diskSpec() kubevirtv1.VirtualMachineInstanceSpec {
	return gen.Guest(gen.Disk("root", "root"))
}

func (w *world) track() {
	w.tracker = gen.Tracker(metav1.ObjectMeta{Namespace: "ns", Name: "tracker", UID: w.uid(), CreationTimestamp: metav1.NewTime(w.now)}, "vm")
}

func (w *world) create(name string, tracked bool) *backupv1.VirtualMachineBackup {
	meta := metav1.ObjectMeta{Namespace: "ns", Name: name, UID: w.uid(), CreationTimestamp: metav1.NewTime(w.now), Generation: 1}
	b := gen.Backup(meta, gen.SetBackupMode(backupv1.PushMode))
	if tracked {
		gen.SetTracker("tracker")(b)
	}
	w.backups = append(w.backups, b)
	return b
}

func (w *world) delete(b *backupv1.VirtualMachineBackup) {
	if b.DeletionTimestamp == nil {
		b.DeletionTimestamp = &metav1.Time{Time: w.now}
	}
	w.collect()
}

// collect drops the objects that are deleted and have no finalizer.
func (w *world) collect() {
	w.backups = slices.DeleteFunc(w.backups, func(b *backupv1.VirtualMachineBackup) bool {
		return b.DeletionTimestamp != nil && len(b.Finalizers) == 0
	})
	if t := w.tracker; t != nil && t.DeletionTimestamp != nil && len(t.Finalizers) == 0 {
		w.tracker = nil
	}
}

func (w *world) input(b *backupv1.VirtualMachineBackup) *input {
	in := &input{Now: w.now, Limits: w.limits, Backup: b, VM: w.vm, Instance: w.instance, Claim: w.claim, ClaimUsers: w.users, Configuration: w.configuration, ConfigurationName: types.NamespacedName{Namespace: "varve", Name: "kubevirt"}}
	if b.Spec.BackupTracker != "" {
		in.Tracker = w.tracker
	}
	var line []backupv1.VirtualMachineBackup
	for _, o := range w.backups {
		line = append(line, *o)
	}
	in.Ahead = directlyAhead(b, line)
	in.Node = w.load
	if b.Spec.IsPull() {
		in.Pull = w.pullInput(in)
	}
	in.Seen = w.watchdog.observe(in)
	return in
}

func (w *world) step(b *backupv1.VirtualMachineBackup) decision {
	d := decide(w.input(b))
	w.perform(b, d)
	return d
}

// settle decides until nothing is left to do now.
func (w *world) settle(b *backupv1.VirtualMachineBackup) decision {
	for range maxSteps {
		if d := w.step(b); d.Step == stepNone {
			return d
		}
	}
	panic(fmt.Sprintf("backup %s in %s does not come to rest", b.Name, b.Status.Phase))
}

func (w *world) perform(b *backupv1.VirtualMachineBackup, d decision) {
	switch d.Step {
	case stepAddFinalizer:
		controllerutil.AddFinalizer(b, backupv1.BackupFinalizer)
	case stepRemoveFinalizer:
		releaseBackup(b)
		w.collect()
	case stepProtectTracker:
		controllerutil.AddFinalizer(w.tracker, layout.FinalizerTracker)
	case stepAttach:
		w.instance.Spec.UtilityVolumes = append(w.instance.Spec.UtilityVolumes, *d.Volume)
	case stepDetach:
		w.instance.Spec.UtilityVolumes = slices.DeleteFunc(w.instance.Spec.UtilityVolumes, func(u kubevirtv1.UtilityVolume) bool { return u.Name == d.Volume.Name })
	case stepLock:
		if d.Lock.CheckpointName != nil {
			w.tracker.Status.NewestCheckpointTime = d.Lock.StartTimestamp
		}
		w.instance.Status.ChangedBlockTracking.BackupStatus = d.Lock
	case stepUnlock:
		w.instance.Status.ChangedBlockTracking.BackupStatus = nil
	case stepMoveTracker:
		w.tracker.Status.LatestCheckpoint, w.tracker.Status.Discarded = d.Checkpoint, nil
	case stepStatus:
		b.Status = *d.Status
	default:
		w.performPull(b, d)
	}
}

// mount plays the handler and the utility volume controller: it mounts what is wanted and removes what is not.
func (w *world) mount() {
	if w.instance == nil {
		return
	}
	w.instance.Status.VolumeStatus = nil
	for _, u := range w.instance.Spec.UtilityVolumes {
		w.instance.Status.VolumeStatus = append(w.instance.Status.VolumeStatus, kubevirtv1.VolumeStatus{Name: u.Name, Phase: kubevirtv1.VolumeMountedToPod})
	}
}

// copied plays the handler that ends a copy successfully.
func (w *world) copied(b *backupv1.VirtualMachineBackup) {
	b.Status.Phase = backupv1.BackupCopied
	b.Status.StartTimestamp = &metav1.Time{Time: w.now}
	b.Status.IncludedVolumes = []backupv1.IncludedVolume{{Name: "root", Type: backupv1.Full}}
	b.Status.BackupType = backupv1.Full
	b.Status.ManifestSHA256 = "of " + string(b.UID)
}

// starting takes a backup to Starting.
func (w *world) starting(b *backupv1.VirtualMachineBackup) {
	w.settle(b)
	w.mount()
	if d := w.settle(b); b.Status.Phase == backupv1.BackupAttaching {
		w.now = d.Wake // a second that no checkpoint is named after
		w.settle(b)
	}
	if b.Status.Phase != backupv1.BackupStarting {
		panic(fmt.Sprintf("backup %s is %s: %s", b.Name, b.Status.Phase, b.Status.Message))
	}
}

func (w *world) locked() string {
	if lock := lockOf(w.instance); lock != nil {
		return lock.BackupName
	}
	return ""
}

// refuse plays the API server's refusal of the next step.
func (w *world) refuse(b *backupv1.VirtualMachineBackup, why string) {
	in := w.input(b)
	d := decide(in)
	w.watchdog.recordAttempt(b.UID, d.Step, errors.New(why))
	w.perform(b, reportRefusal(in, d, errors.New(why)))
}

// settleUntil decides until the next step is the given one, and does not make that step.
func (w *world) settleUntil(b *backupv1.VirtualMachineBackup, step step) {
	for range maxSteps {
		if decide(w.input(b)).Step == step {
			return
		}
		w.step(b)
	}
	panic(fmt.Sprintf("backup %s in %s does not come to %s", b.Name, b.Status.Phase, step))
}

// places returns the keys of backups, of which each is given as namespace/name.
func places(backups ...string) []types.NamespacedName {
	var keys []types.NamespacedName
	for _, b := range backups {
		namespace, name, _ := strings.Cut(b, "/")
		keys = append(keys, types.NamespacedName{Namespace: namespace, Name: name})
	}
	return keys
}
