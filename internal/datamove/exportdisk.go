package datamove

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/varvebackup/varve/internal/errclass"
)

// SourceExport is the value of ConfigSource for the disk of a stopped machine, or of a snapshot of a machine, which a
// VirtualMachineExport serves. The disk is that of the claim in spec.sourcePVC.
const SourceExport = "export"

// ConfigExport is the name of the VirtualMachineExport, in spec.sourceNamespace.
const ConfigExport = "virtualMachineExport"

// FullMachineStopped is why the upload of a stopped machine's disk reads everything that is allocated: nobody tracks what
// changes on it.
const FullMachineStopped = "MachineStopped"

// FullNotTracked is why the upload of a running machine's disk reads everything: nobody tracks what changes on it, and
// it is read from a snapshot.
const FullNotTracked = "NotTracked"

// ExportDisk says which disk of a machine that is exported a DataUpload moves, and with which others.
type ExportDisk struct {
	// Export is the name of a VirtualMachineExport of the machine, or of a VirtualMachineSnapshot of it.
	Export string
	// Group is a DNS label that the DataUploads of the machine's disks have in common.
	Group string
	// Definition is the UID of the machine definition that is stored with the disk, or "".
	Definition string
}

// ReadsExport says whether a DataUpload of the snapshotType VirtualMachineBackup with this dataMoverConfig reads an export.
func ReadsExport(config map[string]string) bool { return config[ConfigSource] == SourceExport }

// Config returns the disk as spec.dataMoverConfig has it.
func (d *ExportDisk) Config() map[string]string {
	config := map[string]string{ConfigSource: SourceExport, ConfigExport: d.Export, ConfigGroup: d.Group}
	if d.Definition != "" {
		config[ConfigDefinition] = d.Definition
	}
	return config
}

// ParseExportDisk reads spec.dataMoverConfig. Errors have the class errclass.Invalid and name the key.
func ParseExportDisk(config map[string]string) (ExportDisk, error) {
	d := ExportDisk{
		Export: config[ConfigExport], Group: config[ConfigGroup], Definition: config[ConfigDefinition],
	}
	var failures []string
	if why := validation.IsDNS1123Subdomain(d.Export); len(why) > 0 {
		failures = append(failures, fmt.Sprintf("%s %.80q: %s", ConfigExport, d.Export, why[0]))
	}
	if why := validation.IsDNS1123Label(d.Group); len(why) > 0 {
		failures = append(failures, fmt.Sprintf("%s %.80q: %s", ConfigGroup, d.Group, why[0]))
	}
	if why := isLowerUUID(d.Definition); d.Definition != "" && len(why) > 0 {
		failures = append(failures, fmt.Sprintf("%s %.80q: %s", ConfigDefinition, d.Definition, why[0]))
	}
	if len(failures) > 0 {
		return ExportDisk{}, errclass.Errorf(errclass.Invalid, "spec.dataMoverConfig: %s", strings.Join(failures, "; "))
	}
	return d, nil
}
