//go:build controlplane

package expose

import (
	"errors"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/test/controlplane"
	"github.com/varvebackup/varve/test/gen"
)

var tunnelTests = map[string]func(*world){
	"a full backup":                        tunnelFull,
	"an incremental":                       tunnelIncremental,
	"the group is not complete":            tunnelWaits,
	"what cannot be read is refused":       tunnelRefuses,
	"a claim that is not the volume's":     tunnelOtherClaim,
	"a backup that was made again":         tunnelMadeAgain,
	"the backup ends before its data came": tunnelEnds,
	"the guest was started again":          tunnelOtherGuest,
	"Finish notes what was stored":         tunnelFinish,
}

// grouped is a DataUpload of the disk of a running machine, and what belongs to it.
type grouped struct {
	*velerov2.DataUpload
	claim    *corev1.PersistentVolumeClaim
	instance *kubevirtv1.VirtualMachineInstance
	backup   *backupv1.VirtualMachineBackup
}

// grouped makes a DataUpload, its claim and the running machine, and describes the backup of the group, which was not created.
func (w *world) grouped(edit ...func(*grouped)) *grouped {
	w.Helper()
	g := &grouped{claim: w.claimOf("data", "immediate")}
	g.instance = gen.VirtualMachineInstance(gen.Meta(w.ns, "web"), gen.Guest(gen.Disk("root", g.claim.Name)))
	g.backup = &backupv1.VirtualMachineBackup{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "monday", Annotations: map[string]string{datamove.AnnotationGroup: datamove.GroupKey(w.ns, "monday")}},
		Spec: backupv1.VirtualMachineBackupSpec{
			BackupTracker: "daily", Mode: backupv1.PullMode, PulledBy: backupv1.PulledByDataUploads, PVCName: "scratch",
		},
	}
	asked := datamove.MachineDisk{Machine: "web", Volume: "root", Tracker: "daily", ScratchClaim: "scratch", Group: "monday", Disks: 2}
	g.DataUpload = &velerov2.DataUpload{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "monday-root"},
		Spec: velerov2.DataUploadSpec{
			SnapshotType: velerov2.SnapshotMachineBackup, SourcePVC: g.claim.Name, SourceNamespace: w.ns, BackupStorageLocation: "default", DataMover: datamove.Mover,
			DataMoverConfig: asked.Config(),
		},
	}
	for _, f := range edit {
		f(g)
	}
	w.create(g.claim)
	w.create(g.instance)
	w.create(g.DataUpload)
	return g
}

// serving creates the backup, and has it hold its point in time.
func (w *world) serving(g *grouped, edit func(*backupv1.VirtualMachineBackupStatus)) {
	w.Helper()
	w.createGroupBackup(g.backup)
	w.editBackup(g.backup, func() {
		g.backup.Status = backupv1.VirtualMachineBackupStatus{
			Phase: backupv1.BackupServing, SourceName: "web", InstanceUID: g.instance.UID, Type: backupv1.Full, CheckpointName: "daily-2",
			IncludedVolumes: []backupv1.IncludedVolume{{Name: "root", VolumeName: "root", Type: backupv1.Full, VirtualBytes: 1 << 20}},
		}
		if edit != nil {
			edit(&g.backup.Status)
		}
	})
}

// createGroupBackup plays the controller that makes the backup of a group.
func (w *world) createGroupBackup(b *backupv1.VirtualMachineBackup) {
	w.Helper()
	if err := cluster.Client(w.T, controlplane.Controller).Create(w.Context(), b); err != nil {
		w.Fatal(err)
	}
}

func (w *world) tunnelIs(g *grouped, want datamove.TunnelSource) {
	w.Helper()
	exposure, err := w.endpoints().Expose(w.Context(), g.DataUpload)
	if err != nil || exposure.Volume == nil || exposure.Volume.Tunnel == nil {
		w.Fatalf("%+v: %v", exposure, err)
	}
	want.Volume, want.BackupUID, want.Checkpoint = "root", g.backup.UID, "daily-2"
	wanted := Volume{Tunnel: &want, Bytes: 1 << 20, SourceUID: g.claim.UID}
	if !cmp.Equal(*exposure.Volume, wanted) {
		w.Error(cmp.Diff(wanted, *exposure.Volume))
	}
}

func (w *world) tunnelWaitsFor(g *grouped, want string) {
	w.Helper()
	exposure, err := w.endpoints().Expose(w.Context(), g.DataUpload)
	if err != nil || exposure.Volume != nil || exposure.Waiting != want {
		w.Errorf("waiting for %q, want %q: %v", exposure.Waiting, want, err)
	}
}

func (w *world) tunnelRefused(g *grouped, what string) {
	w.Helper()
	_, err := w.endpoints().Expose(w.Context(), g.DataUpload)
	w.refused(err, what)
}

func tunnelFull(w *world) {
	g := w.grouped()
	w.serving(g, nil)
	for range 2 { // as after a crash
		w.tunnelIs(g, datamove.TunnelSource{})
	}
	w.read(g.DataUpload)
	note, err := readBackupNote(g.DataUpload)
	if err != nil || note == nil || note.Backup != g.backup.UID || note.Moved {
		w.Errorf("%+v: %v", note, err)
	}
	if progress, err := w.endpoints().Dispose(w.Context(), g.DataUpload); err != nil || !progress.Done {
		w.Errorf("%+v: %v", progress, err)
	}
	if w.read(g.backup); g.backup.DeletionTimestamp != nil {
		w.Error("the backup of the group was deleted")
	}
}

func tunnelIncremental(w *world) {
	g := w.grouped()
	w.serving(g, func(s *backupv1.VirtualMachineBackupStatus) {
		s.Type, s.IncludedVolumes[0].Type = backupv1.Incremental, backupv1.Incremental
		s.BaseCheckpoint = &backupv1.Checkpoint{Name: "daily-1", BackupUID: "base", CreationTime: metav1.Now()}
	})
	w.tunnelIs(g, datamove.TunnelSource{BaseCheckpoint: "daily-1", BaseUID: "base"})
	// A disk that is full beside others that are not starts from nothing.
	w.editBackup(g.backup, func() { g.backup.Status.IncludedVolumes[0].Type = backupv1.Full })
	w.tunnelIs(g, datamove.TunnelSource{})
	// Nor does one whose base nobody knows for certain.
	w.editBackup(g.backup, func() {
		g.backup.Status.IncludedVolumes[0].Type, g.backup.Status.BaseCheckpoint.BackupUID = backupv1.Incremental, ""
	})
	w.tunnelIs(g, datamove.TunnelSource{})
}

func tunnelWaits(w *world) {
	g := w.grouped()
	name := "VirtualMachineBackup " + w.ns + "/monday to "
	w.tunnelWaitsFor(g, name+"be made, which needs all 2 DataUploads of group monday")
	w.createGroupBackup(g.backup)
	w.tunnelWaitsFor(g, name+"hold its point in time")
	w.editBackup(g.backup, func() {
		g.backup.Status.Phase, g.backup.Status.Message = backupv1.BackupAttaching, "the claim scratch is not there"
	})
	w.tunnelWaitsFor(g, name+"hold its point in time (the claim scratch is not there)")
	if w.read(g.DataUpload); g.Annotations[datamove.AnnotationExposed] != "" {
		w.Error("noted before it was known")
	}
}

func tunnelRefuses(w *world) {
	for name, c := range map[string]struct {
		edit   func(*grouped)
		status func(*backupv1.VirtualMachineBackupStatus)
		says   string
	}{
		"no scratch claim": {func(g *grouped) { delete(g.Spec.DataMoverConfig, datamove.ConfigScratchClaim) }, nil, "spec.dataMoverConfig: scratchClaim is missing"},
		"no machine":       {func(g *grouped) { delete(g.Spec.DataMoverConfig, datamove.ConfigMachine) }, nil, "spec.dataMoverConfig: virtualMachine is missing"},
		"no annotation":    {func(g *grouped) { g.backup.Annotations = nil }, nil, "is somebody else's: use another group name"},
		"another group": {func(g *grouped) {
			g.backup.Annotations[datamove.AnnotationGroup] = datamove.GroupKey("elsewhere", "monday")
		}, nil, "is somebody else's: use another group name"},
		"a backup for clients": {func(g *grouped) {
			g.backup.Spec.PulledBy, g.backup.Spec.TokenSecretRef = "", ptr.To("token")
		}, nil, "is somebody else's: use another group name"},
		"another machine": {nil, func(s *backupv1.VirtualMachineBackupStatus) { s.SourceName = "db" }, "is of VirtualMachine db, not of web"},
		"no tracker":      {func(g *grouped) { delete(g.Spec.DataMoverConfig, datamove.ConfigTracker) }, nil, "has tracker daily, and this DataUpload names no tracker"},
		"another tracker": {func(g *grouped) { g.Spec.DataMoverConfig[datamove.ConfigTracker] = "weekly" }, nil, "has tracker daily, and this DataUpload names tracker weekly"},
		"a volume left out": {nil, func(s *backupv1.VirtualMachineBackupStatus) {
			s.IncludedVolumes[0].Name, s.IncludedVolumes[0].VolumeName = "data", "data"
		}, `has no volume "root": it has data`},
	} {
		sub := newWorld(w.T)
		g := sub.grouped(func(g *grouped) {
			if c.edit != nil {
				c.edit(g)
			}
		})
		sub.serving(g, c.status)
		w.Log(name)
		sub.tunnelRefused(g, c.says)
		if sub.read(g.DataUpload); g.Annotations[datamove.AnnotationExposed] != "" {
			w.Error("noted")
		}
	}
}

// It fails before the group is complete: no guest is frozen for it.
func tunnelOtherClaim(w *world) {
	g := w.grouped(func(g *grouped) { g.Spec.SourcePVC = "other" })
	w.tunnelRefused(g, "volume root of VirtualMachineInstance "+w.ns+"/web is not on PersistentVolumeClaim other")
	sub := newWorld(w.T)
	g = sub.grouped(func(g *grouped) { g.Spec.DataMoverConfig[datamove.ConfigVolume] = "disk" })
	sub.tunnelRefused(g, `web has no volume "disk"`)
}

func tunnelMadeAgain(w *world) {
	g := w.grouped()
	w.serving(g, nil)
	w.tunnelIs(g, datamove.TunnelSource{})
	w.delete(g.backup)
	w.tunnelRefused(g, "was deleted before its data was stored: back up the machine's disks again, with another group name")
	g.backup.ResourceVersion, g.backup.UID = "", ""
	w.serving(g, nil)
	w.tunnelRefused(g, "was made again while it was read")
	// What was stored is of one of both.
	_, err := w.endpoints().Finish(w.Context(), g.DataUpload)
	w.refused(err, "was made again while it was read")
}

func tunnelEnds(w *world) {
	g := w.grouped(func(g *grouped) { g.backup.Finalizers = []string{backupv1.BackupFinalizer} })
	w.serving(g, nil)
	w.tunnelIs(g, datamove.TunnelSource{})
	w.delete(g.backup)
	w.tunnelRefused(g, "was deleted before its data was stored")
	w.editBackup(g.backup, func() { setCondition(g.backup, backupv1.ConditionFailed, "GuestEnded") })
	w.tunnelRefused(g, "has ended before its data was stored (GuestEnded): back up the machine's disks again")
}

// The launcher of another run of the machine does not have the point in time.
func tunnelOtherGuest(w *world) {
	g := w.grouped()
	w.serving(g, nil)
	w.delete(g.instance)
	want := "VirtualMachineBackup " + w.ns + "/monday to notice that its guest has ended"
	w.tunnelWaitsFor(g, want)
	g.instance.ResourceVersion, g.instance.UID = "", ""
	w.create(g.instance)
	w.tunnelWaitsFor(g, want)
}

func tunnelFinish(w *world) {
	g := w.grouped()
	w.serving(g, nil)
	_, err := w.endpoints().Finish(w.Context(), g.DataUpload)
	w.refused(err, "somebody has removed the annotation")
	w.tunnelIs(g, datamove.TunnelSource{})
	for range 2 { // as after a crash; the second time, the backup is gone
		progress, err := w.endpoints().Finish(w.Context(), g.DataUpload)
		w.read(g.DataUpload)
		note, noteErr := readBackupNote(g.DataUpload)
		if err != nil || noteErr != nil || !progress.Done || !note.Moved || note.Backup != g.backup.UID {
			w.Errorf("%+v, %+v: %v", progress, note, errors.Join(err, noteErr))
		}
		if w.exists(g.backup) {
			w.delete(g.backup)
		}
	}
}
