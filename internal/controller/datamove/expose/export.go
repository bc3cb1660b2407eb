package expose

import (
	"cmp"
	"context"
	"net"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/reconcile"
)

// Exports exposes disks of stopped machines, and of snapshots: it finds where an export serves them, and makes nothing.
// A controller copies what opens the export into the Secret of the mover pod. An export is known by its UID
// (datamove.ReadBackup): one that was made again under its name is another one, which may serve other bytes.
type Exports struct{ Access }

// Expose waits until the export is Ready, and says where the disk is.
func (e *Exports) Expose(ctx context.Context, upload *velerov2.DataUpload) (Exposure, error) {
	o, note, name, err := e.findExport(ctx, upload)
	switch {
	case err != nil:
		return Exposure{}, err
	case o == nil && note == nil:
		return Exposure{Waiting: name + " to be created"}, nil
	case o == nil || o.DeletionTimestamp != nil:
		return Exposure{}, refuse("%s was deleted before its data was stored", name)
	case o.Spec.Source.Kind != exportv1.SourceMachine && o.Spec.Source.Kind != exportv1.SourceSnapshot:
		return Exposure{}, refuse("%s is neither of a VirtualMachine nor of a VirtualMachineSnapshot: nobody says "+
			"whether somebody writes to its disks", name)
	case o.Status.Phase == exportv1.ExportSkipped, o.Status.Phase == exportv1.ExportTerminated:
		return Exposure{}, refuse("%s serves nothing%s: if the machine has never run, start it once", name,
			inBrackets(progressOfExport(o)))
	case o.Status.Phase != exportv1.ExportReady || o.Status.Links == nil || o.Status.Links.Internal == nil:
		return Exposure{Waiting: withDetail(name+" to be Ready", progressOfExport(o))}, nil
	}
	from, err := exportedDisk(name, o, upload.Spec.SourcePVC)
	if err != nil {
		return Exposure{}, err
	}
	if from.Address, err = e.serviceAddress(ctx, o); err != nil {
		return Exposure{}, err
	}
	return e.exposeDisk(ctx, upload, o.UID, note, &Volume{Endpoint: from})
}

// Finish notes that the disk is stored. That was no disk of the export if another one has its name by now.
func (e *Exports) Finish(ctx context.Context, upload *velerov2.DataUpload) (Progress, error) {
	_, note, _, err := e.findExport(ctx, upload)
	if err != nil {
		return Progress{}, err
	}
	return e.finishRead(ctx, upload, note, "VirtualMachineExport")
}

// Dispose has nothing to do: the mover pod owned the only thing that was made.
func (*Exports) Dispose(context.Context, *velerov2.DataUpload) (Progress, error) {
	return Progress{Done: true}, nil
}

// findExport returns the export that a DataUpload names, or nil, and the note on the DataUpload, or nil. It refuses an export
// that is not the one of the note.
func (e *Exports) findExport(ctx context.Context, upload *velerov2.DataUpload) (o *exportv1.VirtualMachineExport, note *datamove.ReadBackup, name string, err error) {
	asked, err := datamove.ParseExportDisk(upload.Spec.DataMoverConfig)
	if err != nil {
		return nil, nil, "", refuse("%w", err)
	}
	if note, err = readBackupNote(upload); err != nil {
		return nil, nil, "", err
	}
	key := types.NamespacedName{Namespace: upload.Spec.SourceNamespace, Name: asked.Export}
	name = "VirtualMachineExport " + key.String()
	if o, err = reconcile.Find(ctx, e.Live, key, &exportv1.VirtualMachineExport{}); err != nil {
		return nil, nil, "", err
	}
	if o != nil && note != nil && o.UID != note.Backup {
		return nil, nil, "", refuse("%s was made again while it was read: create another backup", name)
	}
	return o, note, name, nil
}

// exportedDisk returns where the disk of a claim is read in an export that is Ready.
func exportedDisk(name string, o *exportv1.VirtualMachineExport, claim string) (*datamove.EndpointSource, error) {
	link := o.Status.Links.Internal
	i := slices.IndexFunc(link.Backups, func(b exportv1.VirtualMachineExportBackup) bool { return b.Name == claim })
	if i < 0 {
		return exportedFile(name, o, claim)
	}
	urls := map[exportv1.ExportBackupEndpoint]string{}
	for _, e := range link.Backups[i].Endpoints {
		urls[e.Endpoint] = e.URL
	}
	for _, kind := range []exportv1.ExportBackupEndpoint{exportv1.EndpointMap, exportv1.EndpointData} {
		if err := checkEndpointURL(urls[kind], o.Namespace, claim, string(kind)); err != nil {
			return nil, refuse("%s: %w", name, err)
		}
	}
	return &datamove.EndpointSource{
		Map: urls[exportv1.EndpointMap], Data: urls[exportv1.EndpointData], Export: true, Volume: claim,
		BackupUID: o.UID,
	}, nil
}

// httpsPort is that of the Services of exports: checkEndpointURL admits no other one.
const httpsPort = "443"

// serviceAddress returns the address of the export's own Service, or "" if it has none. A cluster may have no DNS.
func (e *Exports) serviceAddress(ctx context.Context, o *exportv1.VirtualMachineExport) (string, error) {
	key := types.NamespacedName{Namespace: o.Namespace, Name: o.Status.ServiceName}
	service, err := reconcile.Find(ctx, e.Live, key, &corev1.Service{})
	if err != nil || service == nil || !metav1.IsControlledBy(service, o) ||
		net.ParseIP(service.Spec.ClusterIP) == nil {
		return "", err
	}
	return net.JoinHostPort(service.Spec.ClusterIP, httpsPort), nil
}

// progressOfExport returns what an export says about itself while it is not Ready. KubeVirt's often give a reason alone.
func progressOfExport(o *exportv1.VirtualMachineExport) string {
	for _, c := range o.Status.Conditions {
		if c.Type == exportv1.ConditionReady && c.Status != corev1.ConditionTrue {
			return cmp.Or(c.Message, c.Reason)
		}
	}
	return ""
}
