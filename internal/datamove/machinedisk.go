package datamove

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/layout"
)

// Keys of spec.dataMoverConfig of a DataUpload with the snapshotType VirtualMachineBackup. Other keys are ignored.
const (
	// ConfigMachine is the name of the virtual machine, in spec.sourceNamespace.
	ConfigMachine = "virtualMachine"
	// ConfigVolume is the name of the machine's volume whose claim is spec.sourcePVC.
	ConfigVolume = "volume"
	// ConfigTracker is the name of the VirtualMachineBackupTracker that says what the upload starts from; without it, everything is read.
	ConfigTracker = "tracker"
	// ConfigScratchClaim is the name of the claim that takes in what the guest overwrites while its disks are read.
	ConfigScratchClaim = "scratchClaim"
	// ConfigSkipQuiesce is "true" if the guest's file systems are not to be frozen at the moment that is stored. The same for all of a group.
	ConfigSkipQuiesce = "skipQuiesce"
	// ConfigGroup is the ID that the DataUploads of one moment of the machine have in common.
	ConfigGroup = "group"
	// ConfigDefinition is the UID of the machine definition that is stored with each disk: it names the Secret with the
	// definition, as DefinitionSecret does. Without it, none is stored. The same for all of a group.
	ConfigDefinition = "definition"
	// ConfigMachineBackup is the name of the VirtualMachineBackup of harvesterhci.io that the DataUpload is made for, in
	// spec.sourceNamespace. The restore point says it.
	ConfigMachineBackup = "machineBackup"
	// ConfigDisks is how many DataUploads the group has.
	ConfigDisks = "disks"
)

// DefinitionSecretType is the type of the Secret, in Varve's namespace, with the definition of a machine. No other Secret
// is read for one.
const DefinitionSecretType corev1.SecretType = layout.Prefix + "machine-definition"

// DefinitionKey is the key of the definition: in that Secret, and in the Secret of each mover pod that stores it.
const DefinitionKey = "definition"

// DefinitionSecret returns the name of the Secret with the definition that has this UID.
func DefinitionSecret(uid string) string { return "definition-" + uid }

// MaxGroupDisks is how many DataUploads a group may have. QEMU serves no more disks at once than a backup has connections for.
const MaxGroupDisks = 64

// AnnotationGroup is on the VirtualMachineBackup that is made for a group of DataUploads: the group's GroupKey. A backup of the group's name
// without it is somebody else's.
const AnnotationGroup = layout.Prefix + "data-upload-group"

// LabelGroup is a label of the restore points of a group: the group's ID. A restore point's other labels say which namespace its DataUpload
// was in. DataUploads that the command line makes have it as well, for people: spec.dataMoverConfig is what counts.
const LabelGroup = AnnotationGroup

// GroupKey returns what names a group in the whole cluster. namespace is that of the group's DataUploads.
func GroupKey(namespace, group string) string { return namespace + "/" + group }

// MachineDisk says which disk of a running machine a DataUpload moves, and with which others.
type MachineDisk struct {
	// Machine is the virtual machine's name, and Volume the name of its volume.
	Machine, Volume string
	// Tracker is the tracker's name, or "".
	Tracker string
	// ScratchClaim is the name of a claim.
	ScratchClaim string
	// SkipQuiesce: the guest is not frozen.
	SkipQuiesce bool
	// Group is a DNS label, and the name of the VirtualMachineBackup.
	Group string
	// Disks is from 1 to MaxGroupDisks.
	Disks int
	// Definition is the UID of the machine definition that is stored with the disk, or "".
	Definition string
}

// Config returns the disk as spec.dataMoverConfig has it.
func (d *MachineDisk) Config() map[string]string {
	config := map[string]string{
		ConfigMachine: d.Machine, ConfigVolume: d.Volume, ConfigScratchClaim: d.ScratchClaim, ConfigGroup: d.Group, ConfigDisks: strconv.Itoa(d.Disks),
	}
	if d.Tracker != "" {
		config[ConfigTracker] = d.Tracker
	}
	if d.Definition != "" {
		config[ConfigDefinition] = d.Definition
	}
	if d.SkipQuiesce {
		config[ConfigSkipQuiesce] = strconv.FormatBool(d.SkipQuiesce)
	}
	return config
}

// ParseMachineDisk reads spec.dataMoverConfig. Errors have the class errclass.Invalid and name the key.
func ParseMachineDisk(config map[string]string) (MachineDisk, error) {
	d := MachineDisk{
		Machine: config[ConfigMachine], Volume: config[ConfigVolume], Tracker: config[ConfigTracker], ScratchClaim: config[ConfigScratchClaim], Group: config[ConfigGroup],
		Definition: config[ConfigDefinition],
	}
	var failures []string
	check := func(key, value string, valid func(string) []string) {
		if value == "" {
			failures = append(failures, fmt.Sprintf("%s is missing", key))
			return
		}
		if why := valid(value); len(why) > 0 {
			failures = append(failures, fmt.Sprintf("%s %.80q: %s", key, value, why[0]))
		}
	}
	check(ConfigMachine, d.Machine, validation.IsDNS1123Subdomain)
	check(ConfigVolume, d.Volume, validation.IsDNS1123Label)
	if d.Tracker != "" {
		check(ConfigTracker, d.Tracker, validation.IsDNS1123Subdomain)
	}
	check(ConfigScratchClaim, d.ScratchClaim, validation.IsDNS1123Subdomain)
	check(ConfigGroup, d.Group, validation.IsDNS1123Label)
	if d.Definition != "" {
		check(ConfigDefinition, d.Definition, isLowerUUID)
	}
	disks, err := strconv.Atoi(config[ConfigDisks])
	if err != nil || disks < 1 || disks > MaxGroupDisks {
		failures = append(failures, fmt.Sprintf("%s %.80q: must be a number from 1 to %d", ConfigDisks, config[ConfigDisks], MaxGroupDisks))
	}
	d.Disks = disks
	if text, ok := config[ConfigSkipQuiesce]; ok {
		if d.SkipQuiesce, err = strconv.ParseBool(text); err != nil {
			failures = append(failures, fmt.Sprintf("%s %.80q: must be true or false", ConfigSkipQuiesce, text))
		}
	}
	if len(failures) > 0 {
		return MachineDisk{}, errclass.Errorf(errclass.Invalid, "spec.dataMoverConfig: %s", strings.Join(failures, "; "))
	}
	return d, nil
}

// lowerUUID matches UIDs as the API server makes them.
var lowerUUID = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

func isLowerUUID(text string) []string {
	if lowerUUID.MatchString(text) {
		return nil
	}
	return []string{"must be a UID: a UUID in lower case"}
}
