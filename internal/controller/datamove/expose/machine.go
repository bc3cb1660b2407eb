package expose

import (
	"context"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
)

// uploadExposer is what the exposers of DataUploads have in common.
type uploadExposer interface {
	Expose(ctx context.Context, upload *velerov2.DataUpload) (Exposure, error)
	Finish(ctx context.Context, upload *velerov2.DataUpload) (Progress, error)
	Dispose(ctx context.Context, upload *velerov2.DataUpload) (Progress, error)
}

// MachineBackups are the exposers of DataUploads of the type VirtualMachineBackup. Which one it is stands in dataMoverConfig, and never
// changes.
type MachineBackups struct {
	// Tunnel reads the disks of a running machine over the tunnel of its launcher. It is nil beside KubeVirt, whose
	// launchers have none.
	Tunnel uploadExposer
	// Endpoints reads those of a pull backup that somebody else makes.
	Endpoints uploadExposer
	// Exports reads those of a stopped machine from an export, Varve's or KubeVirt's.
	Exports uploadExposer
}

func (m *MachineBackups) chosen(upload *velerov2.DataUpload) (uploadExposer, error) {
	config := upload.Spec.DataMoverConfig
	switch source := config[datamove.ConfigSource]; {
	case datamove.ReadsEndpoints(config):
		return m.Endpoints, nil
	case m.Tunnel == nil && source == "":
		return nil, refuse("spec.dataMoverConfig: machines run under KubeVirt in this cluster, whose disks are read from "+
			"the endpoints of its pull backups: set %s to %s, or back the whole machine up with `varve vm backup`",
			datamove.ConfigSource, datamove.SourceEndpoints)
	case datamove.ReadsExport(config):
		return m.Exports, nil
	case source != "":
		return nil, refuse("spec.dataMoverConfig: %s %.80q: must be %s or %s, or absent", datamove.ConfigSource, source,
			datamove.SourceEndpoints, datamove.SourceExport)
	case config[datamove.ConfigMachine] == "" && config[datamove.ConfigGroup] == "":
		return nil, refuse("spec.dataMoverConfig says nothing: set %s to %s to read a pull backup that exists, or %s, %s and the other keys for a disk of a running machine",
			datamove.ConfigSource, datamove.SourceEndpoints, datamove.ConfigMachine, datamove.ConfigGroup)
	}
	return m.Tunnel, nil
}

// Expose makes the next step of the exposer that the DataUpload chooses.
func (m *MachineBackups) Expose(ctx context.Context, upload *velerov2.DataUpload) (Exposure, error) {
	e, err := m.chosen(upload)
	if err != nil {
		return Exposure{}, err
	}
	return e.Expose(ctx, upload)
}

// Finish is that of the exposer that the DataUpload chooses.
func (m *MachineBackups) Finish(ctx context.Context, upload *velerov2.DataUpload) (Progress, error) {
	e, err := m.chosen(upload)
	if err != nil {
		return Progress{}, err
	}
	return e.Finish(ctx, upload)
}

// Dispose is that of the exposer that the DataUpload chooses. Nothing was made for one that chooses none.
func (m *MachineBackups) Dispose(ctx context.Context, upload *velerov2.DataUpload) (Progress, error) {
	e, err := m.chosen(upload)
	if err != nil {
		return Progress{Done: true}, nil //nolint:nilerr // Expose has refused it
	}
	return e.Dispose(ctx, upload)
}
