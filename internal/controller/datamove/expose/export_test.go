//go:build controlplane

package expose

import (
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
)

var exportTests = map[string]func(*world){
	"a disk of a stopped machine":   exportServes,
	"a disk of KubeVirt's export":   exportServesFile,
	"a disk of a snapshot":          exportServesSnapshot,
	"the export is not Ready yet":   exportWaits,
	"what is not read of an export": exportRefused,
	"an export that was made again": exportMadeAgain,
}

// exported is an export of a stopped machine, and a DataUpload that reads it.
type exported struct {
	*velerov2.DataUpload
	claim  *corev1.PersistentVolumeClaim
	export *exportv1.VirtualMachineExport
}

// exported makes a DataUpload and its claim, and describes an export that was not created.
func (w *world) exported() *exported {
	w.Helper()
	e := &exported{claim: w.claimOf("data", "immediate")}
	w.create(e.claim)
	e.export = &exportv1.VirtualMachineExport{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "web-disks"},
		Spec: exportv1.VirtualMachineExportSpec{Source: corev1.TypedLocalObjectReference{
			APIGroup: ptr.To(kubevirtv1.GroupVersion.Group), Kind: exportv1.SourceMachine, Name: "web",
		}},
	}
	disk := datamove.ExportDisk{Export: e.export.Name, Group: "web"}
	e.DataUpload = &velerov2.DataUpload{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "web-data"},
		Spec: velerov2.DataUploadSpec{
			SnapshotType: velerov2.SnapshotMachineBackup, SourcePVC: e.claim.Name, SourceNamespace: w.ns,
			BackupStorageLocation: "default", DataMover: datamove.Mover, DataMoverConfig: disk.Config(),
		},
	}
	w.create(e.DataUpload)
	return e
}

// serves creates the export, and has it be Ready with the disk of the claim.
func (w *world) serves(e *exported, edit func(*exportv1.VirtualMachineExport)) {
	w.Helper()
	base := "https://virt-export-web-disks." + w.ns + ".svc/exports/" + e.claim.Name + "/"
	w.create(e.export)
	w.editBackup(e.export, func() {
		e.export.Status = exportv1.VirtualMachineExportStatus{
			Phase: exportv1.ExportReady,
			Links: &exportv1.VirtualMachineExportLinks{Internal: &exportv1.VirtualMachineExportLink{
				Cert: "authorities",
				Backups: []exportv1.VirtualMachineExportBackup{{
					Name: e.claim.Name, Endpoints: []exportv1.VirtualMachineExportBackupEndpoint{
						{Endpoint: exportv1.EndpointMap, URL: base + "map"},
						{Endpoint: exportv1.EndpointData, URL: base + "data"},
					},
				}},
			}},
		}
		if edit != nil {
			edit(e.export)
		}
	})
}

func exportServes(w *world) {
	e := w.exported()
	w.serves(e, nil)
	base := "https://virt-export-web-disks." + w.ns + ".svc/exports/" + e.claim.Name + "/"
	want := &datamove.EndpointSource{
		Map: base + "map", Data: base + "data", Export: true, Volume: e.claim.Name, BackupUID: e.export.UID,
	}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "virt-export-web-disks"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 443}}},
	}
	w.create(service)
	w.editBackup(e.export, func() { e.export.Status.ServiceName = service.Name })
	if exposure, err := w.endpoints().Expose(w.Context(), e.DataUpload); err != nil || exposure.Volume == nil ||
		exposure.Volume.Endpoint.Address != "" {
		w.Errorf("the address of somebody else's Service: %+v: %v", exposure, err)
	}
	w.edit(service, func() {
		service.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(e.export,
			exportv1.GroupVersion.WithKind("VirtualMachineExport"))}
	})
	want.Address = service.Spec.ClusterIP + ":443"
	for range 2 { // as after a crash
		exposure, err := w.endpoints().Expose(w.Context(), e.DataUpload)
		if err != nil || exposure.Volume == nil || exposure.Volume.SourceUID != e.claim.UID ||
			exposure.Volume.Claim != "" || !exposure.Volume.OfMachine() {
			w.Fatalf("%+v: %v", exposure, err)
		}
		if diff := cmp.Diff(want, exposure.Volume.Endpoint); diff != "" {
			w.Error(diff)
		}
	}
	for range 2 {
		progress, err := w.endpoints().Finish(w.Context(), e.DataUpload)
		w.read(e.DataUpload)
		note, noteErr := readBackupNote(e.DataUpload)
		if err != nil || noteErr != nil || !progress.Done || !note.Moved || note.Backup != e.export.UID {
			w.Errorf("%+v, %+v: %v, %v", progress, note, err, noteErr)
		}
		if w.exists(e.export) {
			w.delete(e.export) // the second time, it is gone
		}
	}
	if progress, err := w.endpoints().Dispose(w.Context(), e.DataUpload); err != nil || !progress.Done {
		w.Errorf("%+v: %v", progress, err)
	}
}

// asKubeVirtExport leaves of an export that is Ready what KubeVirt has: a disk in one format, and no map.
func asKubeVirtExport(e *exportv1.VirtualMachineExport, format exportv1.ExportVolumeFormat, path string) {
	link := e.Status.Links.Internal
	link.Volumes = []exportv1.VirtualMachineExportVolume{{
		Name: link.Backups[0].Name, Formats: []exportv1.VirtualMachineExportVolumeFormat{
			{Format: format, URL: "https://virt-export-web-disks." + e.Namespace + ".svc" + path},
		},
	}}
	link.Backups = nil
}

// exportServesFile: on a Block volume, or one that a DataVolume has made, KubeVirt serves the disk itself, and on
// others the directory with its file.
func exportServesFile(w *world) {
	for format, path := range map[exportv1.ExportVolumeFormat]string{
		exportv1.FormatRaw: "/disk.img", exportv1.FormatDir: "/dir",
	} {
		sub := newWorld(w.T)
		e := sub.exported()
		path = "/volumes/" + e.claim.Name + path
		sub.serves(e, func(o *exportv1.VirtualMachineExport) { asKubeVirtExport(o, format, path) })
		if format == exportv1.FormatDir {
			path += "/disk.img"
		}
		want := &datamove.EndpointSource{
			Data: "https://virt-export-web-disks." + sub.ns + ".svc" + path, Export: true, Volume: e.claim.Name,
			BackupUID: e.export.UID,
		}
		exposure, err := sub.endpoints().Expose(sub.Context(), e.DataUpload)
		if err != nil || exposure.Volume == nil {
			w.Fatalf("%s: %+v: %v", format, exposure, err)
		}
		if diff := cmp.Diff(want, exposure.Volume.Endpoint); diff != "" {
			w.Errorf("%s: %s", format, diff)
		}
	}
}

// exportServesSnapshot: KubeVirt's export of a snapshot has the disks on claims of its own.
func exportServesSnapshot(w *world) {
	w.cluster.AcceptExportsOfSnapshots(w.T)
	e := w.exported()
	e.export.Spec.Source = corev1.TypedLocalObjectReference{
		APIGroup: ptr.To("snapshot.kubevirt.io"), Kind: exportv1.SourceSnapshot, Name: "web",
	}
	w.serves(e, func(o *exportv1.VirtualMachineExport) {
		asKubeVirtExport(o, exportv1.FormatRaw, "/volumes/"+o.Name+"-"+e.claim.Name+"/disk.img")
	})
	exposure, err := w.endpoints().Expose(w.Context(), e.DataUpload)
	if err != nil || exposure.Volume == nil || exposure.Volume.Endpoint.FullReason != datamove.FullNotTracked ||
		exposure.Volume.SourceUID != e.claim.UID {
		w.Errorf("%+v: %v", exposure, err)
	}
}

func exportWaits(w *world) {
	e := w.exported()
	name := "VirtualMachineExport " + w.ns + "/web-disks to be "
	waits := func(want string) {
		w.Helper()
		exposure, err := w.endpoints().Expose(w.Context(), e.DataUpload)
		if err != nil || exposure.Volume != nil || exposure.Waiting != want {
			w.Errorf("waiting for %q, want %q: %v", exposure.Waiting, want, err)
		}
	}
	waits(name + "created")
	w.create(e.export)
	waits(name + "Ready")
	w.editBackup(e.export, func() {
		e.export.Status.Phase = exportv1.ExportPending
		e.export.Status.Conditions = []exportv1.Condition{{
			Type: exportv1.ConditionReady, Status: corev1.ConditionFalse, Reason: exportv1.ReasonClaimInUse,
			Message: "pod web can write to it", LastTransitionTime: metav1.Now(),
		}}
	})
	waits(name + "Ready (pod web can write to it)")
	if w.read(e.DataUpload); e.Annotations[datamove.AnnotationExposed] != "" {
		w.Error("noted before it was known")
	}
}

func exportRefused(w *world) {
	link := func(e *exportv1.VirtualMachineExport) *exportv1.VirtualMachineExportLink {
		return e.Status.Links.Internal
	}
	for name, c := range map[string]struct {
		edit func(*exportv1.VirtualMachineExport)
		says string
	}{
		"no disk of it": {
			func(e *exportv1.VirtualMachineExport) { link(e).Backups = nil },
			"does not serve PersistentVolumeClaim",
		},
		"KubeVirt's, compressed alone": {
			func(e *exportv1.VirtualMachineExport) {
				asKubeVirtExport(e, exportv1.FormatGzip, "/volumes/data/disk.img.gz")
			}, "neither as the format raw nor as dir",
		},
		"KubeVirt's, another tenant's": {
			func(e *exportv1.VirtualMachineExport) {
				asKubeVirtExport(e, exportv1.FormatRaw, "")
				link(e).Volumes[0].Formats[0].URL = "https://x.other.svc/volumes/data/disk.img"
			}, "is not that of its disk at a Service in namespace",
		},
		"no endpoint": {
			func(e *exportv1.VirtualMachineExport) { link(e).Backups[0].Endpoints = nil },
			"is no https URL",
		},
		"another tenant's": {func(e *exportv1.VirtualMachineExport) {
			link(e).Backups[0].Endpoints[0].URL = "https://x.other.svc/exports/data/map"
		}, "neither that of a Service"},
		"nothing": {
			func(e *exportv1.VirtualMachineExport) { e.Status.Phase = exportv1.ExportSkipped },
			"serves nothing: if the machine has never run, start it once",
		},
	} {
		sub := newWorld(w.T)
		e := sub.exported()
		sub.serves(e, c.edit)
		_, err := sub.endpoints().Expose(sub.Context(), e.DataUpload)
		sub.Log(name)
		sub.refused(err, c.says)
	}
	e := w.exported()
	e.export.Spec.Source = corev1.TypedLocalObjectReference{Kind: exportv1.SourceClaim, Name: e.claim.Name}
	w.serves(e, nil)
	_, err := w.endpoints().Expose(w.Context(), e.DataUpload)
	w.refused(err, "is neither of a VirtualMachine nor of a VirtualMachineSnapshot")
	_, err = w.endpoints().Finish(w.Context(), e.DataUpload)
	w.refused(err, "somebody has removed the annotation")
	e.Spec.DataMoverConfig = map[string]string{datamove.ConfigSource: datamove.SourceExport}
	_, err = w.endpoints().Expose(w.Context(), e.DataUpload)
	w.refused(err, "spec.dataMoverConfig: virtualMachineExport")
}

func exportMadeAgain(w *world) {
	e := w.exported()
	w.serves(e, nil)
	if exposure, err := w.endpoints().Expose(w.Context(), e.DataUpload); err != nil || exposure.Volume == nil {
		w.Fatalf("%+v: %v", exposure, err)
	}
	w.delete(e.export)
	_, err := w.endpoints().Expose(w.Context(), e.DataUpload)
	w.refused(err, "was deleted before its data was stored")
	e.export.ResourceVersion, e.export.UID = "", ""
	w.serves(e, nil)
	_, err = w.endpoints().Expose(w.Context(), e.DataUpload)
	w.refused(err, "was made again while it was read")
	_, err = w.endpoints().Finish(w.Context(), e.DataUpload)
	w.refused(err, "was made again while it was read")
}
