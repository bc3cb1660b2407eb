//go:build controlplane

package expose

import (
	"context"
	"errors"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/test/controlplane"
	"github.com/varvebackup/varve/test/gen"
)

var endpointTests = map[string]func(*world){
	"a full backup of Varve's":             endpointsFull,
	"an incremental of Varve's":            endpointsIncremental,
	"an incremental of KubeVirt 1.8":       endpointsKubeVirt,
	"a tracker that has just moved":        endpointsTrackerMoves,
	"the backup is not Ready yet":          endpointsWait,
	"what cannot be read is refused":       endpointsRefuse,
	"a backup that was made again":         endpointsMadeAgain,
	"the backup ends before its data came": endpointsEnd,
	"a backup of any version of the API":   endpointsOfEveryVersion,
	"Finish notes what was stored":         endpointsFinish,
	"another source":                       endpointsOtherSource,
}

// pulled is a pull backup of somebody else's, and a DataUpload that reads it.
type pulled struct {
	*velerov2.DataUpload
	claim   *corev1.PersistentVolumeClaim
	tracker *backupv1.VirtualMachineBackupTracker
	backup  *backupv1.VirtualMachineBackup
}

// pulled makes a DataUpload, its claim and a tracker, and describes a backup that was not created.
func (w *world) pulled(edit ...func(*pulled)) *pulled {
	w.Helper()
	p := &pulled{claim: w.claimOf("data", "immediate")}
	w.create(p.claim)
	p.tracker = &backupv1.VirtualMachineBackupTracker{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "daily"}}
	p.tracker.Spec.Source = corev1.TypedLocalObjectReference{APIGroup: ptr.To(kubevirtv1.GroupVersion.Group), Kind: backupv1.SourceKindVirtualMachine, Name: "web"}
	p.backup = &backupv1.VirtualMachineBackup{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "web-2"},
		Spec: backupv1.VirtualMachineBackupSpec{
			BackupTracker: p.tracker.Name, Mode: backupv1.PullMode, PVCName: "scratch", TokenSecretRef: ptr.To("token"),
		},
	}
	p.DataUpload = &velerov2.DataUpload{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "b1-endpoints"},
		Spec: velerov2.DataUploadSpec{
			SnapshotType: velerov2.SnapshotMachineBackup, SourcePVC: p.claim.Name, SourceNamespace: w.ns, BackupStorageLocation: "default", DataMover: datamove.Mover,
			DataMoverConfig: map[string]string{datamove.ConfigSource: datamove.SourceEndpoints, datamove.ConfigBackup: p.backup.Name, datamove.ConfigVolume: "root"},
		},
	}
	for _, f := range edit {
		f(p)
	}
	w.create(p.tracker)
	w.create(p.DataUpload)
	return p
}

// ready creates the backup, and has it be Ready with a disk.
func (w *world) ready(p *pulled, edit func(*backupv1.VirtualMachineBackupStatus)) {
	w.Helper()
	w.create(p.backup)
	w.editBackup(p.backup, func() {
		p.backup.Status = backupv1.VirtualMachineBackupStatus{
			Cert: "a certificate", EndpointCert: "a certificate", Type: backupv1.Full, CheckpointName: "daily-2", IncludedVolumes: []backupv1.IncludedVolume{{
				Name: "root", VolumeName: "root", Type: backupv1.Full, VirtualBytes: 1 << 20, MapEndpoint: w.endpoint("map"), DataEndpoint: w.endpoint("data"),
			}},
		}
		setCondition(p.backup, backupv1.ConditionReady, "Serving")
		setCondition(p.backup, backupv1.ConditionExportReady, "Serving")
		if edit != nil {
			edit(&p.backup.Status)
		}
	})
}

// editBackup changes the status of a backup or a tracker, which only Varve's components may do.
func (w *world) editBackup(o client.Object, edit func()) {
	w.Helper()
	w.read(o)
	edit()
	if err := w.cluster.Client(w.T, controlplane.Controller).Status().Update(w.Context(), o); err != nil {
		w.Fatalf("update %s: %v", describe(o), err)
	}
}

func setCondition(b *backupv1.VirtualMachineBackup, kind, reason string) {
	meta.SetStatusCondition(&b.Status.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: reason})
}

func (w *world) endpoint(kind string) string {
	return "https://virt-export-web-2." + w.ns + ".svc/exports/root/" + kind
}

func (w *world) endpoints() *MachineBackups {
	return &MachineBackups{
		Tunnel: &Tunnel{w.access()}, Endpoints: &Endpoints{w.access()},
		Exports: &Exports{w.access()},
	}
}

// source returns where the disk is to be read.
func (w *world) source(p *pulled) *datamove.EndpointSource {
	w.Helper()
	exposure, err := w.endpoints().Expose(w.Context(), p.DataUpload)
	if err != nil || exposure.Volume == nil || exposure.Volume.Endpoint == nil {
		w.Fatalf("%+v: %v", exposure, err)
	}
	v := exposure.Volume
	if v.Claim != "" || v.VolumeMode != "" || v.SourceUID != p.claim.UID || v.Bytes != v.Endpoint.Bytes {
		w.Errorf("%+v", v)
	}
	return v.Endpoint
}

func (w *world) sourceIs(p *pulled, want datamove.EndpointSource) {
	w.Helper()
	want.Volume, want.BackupUID, want.Map, want.Data = "root", p.backup.UID, w.endpoint("map"), w.endpoint("data")
	if got := w.source(p); !cmp.Equal(*got, want) {
		w.Error(cmp.Diff(want, *got))
	}
}

func endpointsFull(w *world) {
	p := w.pulled()
	w.ready(p, nil)
	for range 2 { // as after a crash
		w.sourceIs(p, datamove.EndpointSource{Bytes: 1 << 20, Checkpoint: "daily-2", CheckpointUID: p.backup.UID})
	}
	w.read(p.DataUpload)
	note, err := readBackupNote(p.DataUpload)
	if err != nil || note == nil || note.Backup != p.backup.UID || note.Moved {
		w.Errorf("%+v: %v", note, err)
	}
	if progress, err := w.endpoints().Dispose(w.Context(), p.DataUpload); err != nil || !progress.Done {
		w.Errorf("%+v: %v", progress, err)
	}
	if w.read(p.backup); p.backup.DeletionTimestamp != nil {
		w.Error("somebody else's backup was deleted")
	}
}

func endpointsIncremental(w *world) {
	p := w.pulled()
	w.ready(p, func(s *backupv1.VirtualMachineBackupStatus) {
		s.IncludedVolumes[0].Type = backupv1.Incremental
		s.BaseCheckpoint = &backupv1.Checkpoint{Name: "daily-1", BackupUID: "base", CreationTime: metav1.Now()}
	})
	want := datamove.EndpointSource{Bytes: 1 << 20, Checkpoint: "daily-2", CheckpointUID: p.backup.UID, BaseCheckpoint: "daily-1", BaseUID: "base"}
	w.sourceIs(p, want)
	// A disk that is full beside others that are not starts from nothing.
	w.editBackup(p.backup, func() { p.backup.Status.IncludedVolumes[0].Type = backupv1.Full })
	want.BaseCheckpoint, want.BaseUID = "", ""
	w.sourceIs(p, want)
	// Nor does one whose base nobody knows for certain.
	w.editBackup(p.backup, func() {
		p.backup.Status.IncludedVolumes[0].Type, p.backup.Status.BaseCheckpoint.BackupUID = backupv1.Incremental, ""
	})
	w.sourceIs(p, want)
}

// asKubeVirt leaves of a status what KubeVirt 1.8 has.
func asKubeVirt(s *backupv1.VirtualMachineBackupStatus) {
	s.Cert, s.Type = "", backupv1.Incremental
	v := &s.IncludedVolumes[0]
	*v = backupv1.IncludedVolume{Name: "-", VolumeName: v.VolumeName, DiskTarget: "vda", MapEndpoint: v.MapEndpoint, DataEndpoint: v.DataEndpoint}
	meta.RemoveStatusCondition(&s.Conditions, backupv1.ConditionReady)
}

func endpointsKubeVirt(w *world) {
	p := w.pulled(func(p *pulled) {
		p.backup.Spec.BackupTracker, p.backup.Spec.Mode = "", "Pull"
		p.backup.Spec.Source = &corev1.TypedLocalObjectReference{APIGroup: ptr.To(backupv1.GroupVersion.Group), Kind: backupv1.SourceKindTracker, Name: p.tracker.Name}
	})
	w.ready(p, asKubeVirt)
	w.sourceIs(p, datamove.EndpointSource{KubeVirt: true}) // no guest runs
	guest := gen.VirtualMachineInstance(metav1.ObjectMeta{Namespace: w.ns, Name: "web"}, gen.Guest())
	w.create(guest)
	run := p.tracker.UID + "." + guest.UID
	want := datamove.EndpointSource{KubeVirt: true, Checkpoint: "daily-2", CheckpointUID: run}
	w.sourceIs(p, want)
	w.editBackup(p.tracker, func() {
		p.tracker.Status.LatestCheckpoint = &backupv1.Checkpoint{Name: "web-1-2026", CreationTime: metav1.Now()}
	})
	want.BaseCheckpoint, want.BaseUID = "web-1-2026", run
	w.sourceIs(p, want)
	// What KubeVirt says of an earlier run is not believed.
	w.delete(guest)
	again := gen.VirtualMachineInstance(metav1.ObjectMeta{Namespace: w.ns, Name: "web"}, gen.Guest())
	w.create(again)
	w.editBackup(p.tracker, func() {
		p.tracker.Status.LatestCheckpoint.CreationTime = metav1.NewTime(again.CreationTimestamp.Add(-time.Hour))
	})
	want.CheckpointUID, want.BaseUID = p.tracker.UID+"."+again.UID, p.tracker.UID+"."+again.UID
	want.FullReason = "MachineRestarted"
	w.sourceIs(p, want)
	w.editBackup(p.tracker, func() { p.tracker.Status.LatestCheckpoint.CreationTime = metav1.Now() })
	w.editBackup(p.backup, func() { p.backup.Status.Type = backupv1.Full })
	want.BaseCheckpoint, want.BaseUID, want.FullReason = "", "", "NoCheckpoint"
	w.sourceIs(p, want)
	// Checkpoints without a tracker mean nothing.
	w.delete(p.tracker)
	w.sourceIs(p, datamove.EndpointSource{KubeVirt: true})
}

// afterTracker calls then once a tracker was read.
type afterTracker struct {
	client.Reader
	then func()
}

func (r afterTracker) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	err := r.Reader.Get(ctx, key, o, options...)
	if _, ok := o.(*backupv1.VirtualMachineBackupTracker); ok {
		r.then()
	}
	return err
}

// A backup of KubeVirt 1.8 moves its tracker when it ends: what the tracker says by then is not its base.
func endpointsTrackerMoves(w *world) {
	p := w.pulled()
	w.ready(p, asKubeVirt)
	access := w.access()
	access.Live = afterTracker{access.Live, func() {
		w.editBackup(p.backup, func() { meta.RemoveStatusCondition(&p.backup.Status.Conditions, backupv1.ConditionExportReady) })
	}}
	exposure, err := (&Endpoints{access}).Expose(w.Context(), p.DataUpload)
	if err != nil || exposure.Volume != nil || exposure.Waiting == "" {
		w.Errorf("%+v: %v", exposure, err)
	}
}

func endpointsWait(w *world) {
	p := w.pulled()
	name := "VirtualMachineBackup " + w.ns + "/web-2 to be "
	waits := func(want string) {
		w.Helper()
		exposure, err := w.endpoints().Expose(w.Context(), p.DataUpload)
		if err != nil || exposure.Volume != nil || exposure.Waiting != want {
			w.Errorf("waiting for %q, want %q: %v", exposure.Waiting, want, err)
		}
	}
	waits(name + "created")
	w.create(p.backup)
	waits(name + "Ready")
	w.editBackup(p.backup, func() { setCondition(p.backup, backupv1.ConditionInitializing, "NoGuest") })
	waits(name + "Ready (NoGuest)")
	w.editBackup(p.backup, func() { p.backup.Status.Message = "the guest is off" })
	waits(name + "Ready (the guest is off)")
	if w.read(p.DataUpload); p.Annotations[datamove.AnnotationExposed] != "" {
		w.Error("noted before it was known")
	}
}

func endpointsRefuse(w *world) {
	for name, c := range map[string]struct {
		upload func(*pulled)
		status func(*backupv1.VirtualMachineBackupStatus)
		says   string
	}{
		"no volume named": {func(p *pulled) { p.Spec.DataMoverConfig[datamove.ConfigVolume] = "" }, nil, "spec.dataMoverConfig: volume"},
		"no backup named": {func(p *pulled) { delete(p.Spec.DataMoverConfig, datamove.ConfigBackup) }, nil, "spec.dataMoverConfig: virtualMachineBackup"},
		"push mode":       {func(p *pulled) { p.backup.Spec.Mode, p.backup.Spec.TokenSecretRef = backupv1.PushMode, nil }, nil, "is in push mode"},
		"no such volume":  {func(p *pulled) { p.Spec.DataMoverConfig[datamove.ConfigVolume] = "other" }, nil, `has no volume "other": it has root`},
		"no certificate":  {nil, func(s *backupv1.VirtualMachineBackupStatus) { s.Cert, s.EndpointCert = "", "" }, "no certificate"},
		"no endpoint":     {nil, func(s *backupv1.VirtualMachineBackupStatus) { s.IncludedVolumes[0].DataEndpoint = "" }, "is no https URL"},
		"another tenant's": {nil, func(s *backupv1.VirtualMachineBackupStatus) {
			s.IncludedVolumes[0].MapEndpoint = "https://x.other.svc/exports/root/map"
		}, "neither that of a Service"},
	} {
		sub := newWorld(w.T)
		p := sub.pulled(func(p *pulled) {
			if c.upload != nil {
				c.upload(p)
			}
		})
		sub.ready(p, c.status)
		_, err := sub.endpoints().Expose(sub.Context(), p.DataUpload)
		w.Log(name)
		sub.refused(err, c.says)
	}
}

func endpointsMadeAgain(w *world) {
	p := w.pulled()
	w.ready(p, nil)
	w.source(p)
	w.delete(p.backup)
	_, err := w.endpoints().Expose(w.Context(), p.DataUpload)
	w.refused(err, "was deleted before its data was stored")
	p.backup.ResourceVersion, p.backup.UID = "", ""
	w.ready(p, nil)
	_, err = w.endpoints().Expose(w.Context(), p.DataUpload)
	w.refused(err, "was made again while it was read")
	// What was stored is of one of both.
	_, err = w.endpoints().Finish(w.Context(), p.DataUpload)
	w.refused(err, "was made again while it was read")
	if w.read(p.DataUpload); p.Annotations[datamove.AnnotationExposed] == "" {
		w.Error("no note")
	}
}

func endpointsEnd(w *world) {
	for _, condition := range []string{backupv1.ConditionFailed, backupv1.ConditionDone, backupv1.ConditionComplete} {
		sub := newWorld(w.T)
		p := sub.pulled()
		sub.ready(p, nil)
		sub.source(p)
		sub.editBackup(p.backup, func() { setCondition(p.backup, condition, "Expired") })
		_, err := sub.endpoints().Expose(sub.Context(), p.DataUpload)
		sub.refused(err, "has ended before its data was stored (Expired)")
	}
	p := w.pulled(func(p *pulled) { p.backup.Finalizers = []string{backupv1.BackupFinalizer} })
	w.ready(p, nil)
	w.delete(p.backup)
	_, err := w.endpoints().Expose(w.Context(), p.DataUpload)
	w.refused(err, "was deleted before its data was stored")
}

// endpointsOfEveryVersion reads a backup that says in the words of any version of the API that it can be read.
func endpointsOfEveryVersion(w *world) {
	for condition, reason := range map[string]string{
		"Ready": "EndpointsReady", "ExportReady": "Backup export is ready to pull", "Progressing": "ExportReady",
	} {
		sub := newWorld(w.T)
		p := sub.pulled()
		sub.ready(p, nil)
		sub.editBackup(p.backup, func() {
			p.backup.Status.Conditions = nil
			setCondition(p.backup, condition, reason)
		})
		sub.source(p)
	}
	p := w.pulled()
	w.ready(p, nil)
	w.editBackup(p.backup, func() {
		p.backup.Status.Conditions = nil
		setCondition(p.backup, "Progressing", "ExportInitiated")
	})
	if exposure, err := w.endpoints().Expose(w.Context(), p.DataUpload); err != nil || exposure.Volume != nil || exposure.Waiting == "" {
		w.Errorf("a backup that is not served yet: %+v (%v)", exposure, err)
	}
}

func endpointsFinish(w *world) {
	p := w.pulled()
	w.ready(p, nil)
	_, err := w.endpoints().Finish(w.Context(), p.DataUpload)
	w.refused(err, "somebody has removed the annotation")
	w.source(p)
	for range 2 { // as after a crash; the second time, the backup is gone
		progress, err := w.endpoints().Finish(w.Context(), p.DataUpload)
		w.read(p.DataUpload)
		note, noteErr := readBackupNote(p.DataUpload)
		if err != nil || noteErr != nil || !progress.Done || !note.Moved || note.Backup != p.backup.UID {
			w.Errorf("%+v, %+v: %v", progress, note, errors.Join(err, noteErr))
		}
		if w.exists(p.backup) {
			w.delete(p.backup)
		}
	}
}

func endpointsOtherSource(w *world) {
	for source, says := range map[string]string{"": "set source to endpoints to read a pull backup that exists, or virtualMachine, group", "nbd": `source "nbd": must be endpoints`} {
		p := &velerov2.DataUpload{Spec: velerov2.DataUploadSpec{DataMoverConfig: map[string]string{datamove.ConfigSource: source}}}
		_, err := w.endpoints().Expose(w.Context(), p)
		w.refused(err, says)
		if progress, err := w.endpoints().Dispose(w.Context(), p); err != nil || !progress.Done {
			w.Errorf("%+v: %v", progress, err)
		}
	}
}
