package harvesterbackup

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/definition"
	"github.com/varvebackup/varve/internal/location"
	"github.com/varvebackup/varve/internal/tracking"
)

// startDeadline is how long a backup waits for what is not there yet before it takes its moment: a guest that starts, a
// location that does not answer.
const startDeadline = time.Hour

// lineDeadline is how long it waits for another backup of the machine to end.
const lineDeadline = 24 * time.Hour

// input is what a plan follows from.
type input struct {
	now    time.Time
	backup *harvesterv1.VirtualMachineBackup
	// beside: machines run under KubeVirt.
	beside bool
	// machine and instance are nil if they do not exist.
	machine  *unstructured.Unstructured
	instance *kubevirtv1.VirtualMachineInstance
	// stopped is the machine if no guest of it runs, or else nil. pods are then those of its namespace.
	stopped *kubevirtv1.VirtualMachine
	pods    []corev1.Pod
	// claims are those of the guest's volumes that exist, and drivers their StorageClasses' provisioners, by the names
	// of the claims.
	claims  map[string]*corev1.PersistentVolumeClaim
	drivers map[string]string
	// earlier is the name of a backup of the machine that was asked for before this one and has not ended, or "".
	earlier string
	// locations are those of Varve's namespace.
	locations []velerov1.BackupStorageLocation
}

// plan says what the backup is going to store, what it waits for, or why it never can.
type plan struct {
	// status has what is to be stored. It is nil while the backup waits, or if it is refused.
	status *harvesterv1.VirtualMachineBackupStatus
	// waiting says what has to be there first; refused says why the backup fails.
	waiting, refused string
	// patience is how long the backup waits; 0: startDeadline, or until its annotation says that it has to begin.
	patience time.Duration
	// deadline is when the wait is over.
	deadline time.Time
}

func waitFor(format string, args ...any) plan    { return plan{waiting: fmt.Sprintf(format, args...)} }
func refusePlan(format string, args ...any) plan { return plan{refused: fmt.Sprintf(format, args...)} }

// makePlan decides what a backup stores.
func makePlan(in *input) plan {
	p := in.planBackup()
	if p.waiting == "" {
		return p
	}
	begun := in.backup.CreationTimestamp.Time
	p.deadline = begun.Add(cmp.Or(p.patience, startDeadline))
	startBy, err := time.Parse(time.RFC3339, in.backup.Annotations[harvesterv1.AnnotationStartBy])
	if err == nil && p.patience == 0 && startBy.Before(p.deadline) {
		p.deadline = startBy
	}
	if in.now.Before(p.deadline) {
		p.waiting += ", until " + p.deadline.UTC().Format(time.RFC3339)
		return p
	}
	return refusePlan("waited %s for %s: create another backup when that is there",
		p.deadline.Sub(begun).Round(time.Second), p.waiting)
}

func (in *input) planBackup() plan {
	if isSnapshot(in.backup) {
		return in.planSnapshot()
	}
	if p := in.checkMachine(); p != nil {
		return *p
	}
	location, p := in.chooseLocation()
	if p != nil {
		return *p
	}
	status, p := in.describeMachine()
	if p != nil {
		return *p
	}
	status.Location = &harvesterv1.LocationReference{Namespace: location.Namespace, Name: location.Name}
	status.BackupTarget = targetOf(location)
	if in.stopped == nil {
		status.Untracked = in.describeUntracked()
	}
	if in.stopped == nil && status.Untracked == nil {
		var err error
		if status.ScratchBytes, err = in.scratchBytes(); err != nil {
			return refusePlan("%v", err)
		}
	}
	if p := in.addVolumes(status); p != nil {
		return *p
	}
	if in.stopped != nil {
		if p := in.recordStopped(status); p != nil {
			return *p
		}
	}
	return plan{status: status}
}

// describeMachine returns a status that has the machine, and none of its disks yet.
func (in *input) describeMachine() (*harvesterv1.VirtualMachineBackupStatus, *plan) {
	status := &harvesterv1.VirtualMachineBackupStatus{
		SourceUID: ptr.To(in.machine.GetUID()), Group: groupName(in.backup.Name, in.backup.UID),
	}
	var addresses map[string]string // a stopped machine has those of its definition
	if in.stopped == nil {
		addresses, status.NodeName = addressesOf(in.instance), in.instance.Status.NodeName
	}
	var err error
	if status.Source, err = definition.Source(in.machine, addresses); err != nil {
		p := refusePlan("%v", err)
		return nil, &p
	}
	secrets, _, err := definition.References(status.Source.Spec)
	if err != nil {
		p := refusePlan("%v", err)
		return nil, &p
	}
	for _, name := range secrets {
		status.SecretBackups = append(status.SecretBackups, harvesterv1.SecretBackup{Name: name})
	}
	return status, nil
}

// checkMachine says what the machine lacks, or nil.
func (in *input) checkMachine() *plan {
	name := in.backup.Namespace + "/" + in.backup.Spec.Source.Name
	var p plan
	switch i := in.instance; {
	case in.machine == nil:
		p = refusePlan("virtual machine %s does not exist: name one that does in spec.source.name", name)
	case in.machine.GetDeletionTimestamp() != nil:
		p = refusePlan("virtual machine %s is being deleted", name)
	case in.stopped != nil:
		return in.checkStopped(name)
	case i == nil || i.Status.Phase.Final():
		p = refusePlan("the definition of virtual machine %s cannot be read: it has no template", name)
	case i.DeletionTimestamp != nil:
		p = waitFor("virtual machine %s to have stopped", name)
	case i.Status.Phase != kubevirtv1.PhaseRunning:
		p = waitFor("virtual machine %s to run: its instance is %s", name, i.Status.Phase)
	case !isSnapshot(in.backup):
		return in.checkTracking(name)
	case in.earlier != "":
		p = in.waitForEarlier()
	default:
		return nil
	}
	return &p
}

// waitForEarlier waits for the backup of the machine that comes before this one.
func (in *input) waitForEarlier() plan {
	p := waitFor("VirtualMachineBackup %s of the machine to end", in.earlier)
	p.patience = lineDeadline
	return p
}

// checkTracking says what is in the way of a backup by changed blocks, or nil.
func (in *input) checkTracking(name string) *plan {
	if in.describeUntracked() != nil {
		return in.checkUntracked()
	}
	var p plan
	switch i := in.instance; {
	case i.Status.ChangedBlockTracking == nil:
		p = refusePlan("the changes of virtual machine %s are not tracked: give it a label that the KubeVirt object selects by (spec.configuration.changedBlockTrackingLabelSelectors), restart it, and create another backup", name)
	case i.Status.ChangedBlockTracking.State == kubevirtv1.ChangedBlockTrackingInitializing:
		p = waitFor("the disks of virtual machine %s to be tracked", name)
	case i.Status.ChangedBlockTracking.State != kubevirtv1.ChangedBlockTrackingEnabled:
		p = refusePlan("the changes of virtual machine %s are not tracked (%s): restart it, and create another backup", name, i.Status.ChangedBlockTracking.State)
	case in.earlier != "":
		p = in.waitForEarlier()
	case i.Status.ChangedBlockTracking.BackupStatus != nil:
		p = waitFor("VirtualMachineBackup %s of backup.kubevirt.io, which holds the machine, to end",
			i.Status.ChangedBlockTracking.BackupStatus.BackupName)
		p.patience = lineDeadline
	default:
		return nil
	}
	return &p
}

// chooseLocation returns the location that the annotation names, or the default one.
func (in *input) chooseLocation() (*velerov1.BackupStorageLocation, *plan) {
	name := in.backup.Annotations[harvesterv1.AnnotationLocation]
	l := location.Choose(in.locations, name)
	var p plan
	switch {
	case l == nil && name != "":
		p = waitFor("BackupStorageLocation %.80q, which the annotation %s names", name, harvesterv1.AnnotationLocation)
	case l == nil:
		p = refusePlan("no BackupStorageLocation is the default: create one with `varve location create NAME URL -n varve --default`, or name one in the annotation %s", harvesterv1.AnnotationLocation)
	case l.Spec.AccessMode == velerov1.AccessReadOnly && !isFound(in.backup):
		p = refusePlan("BackupStorageLocation %s is read-only: name another one in the annotation %s",
			l.Name, harvesterv1.AnnotationLocation)
	case l.Status.Phase != velerov1.LocationAvailable:
		p = waitFor("BackupStorageLocation %s to be available (%s)", l.Name,
			cmp.Or(l.Status.Message, "it was not tried yet"))
	default:
		return l, nil
	}
	return nil, &p
}

// addVolumes adds each volume of the machine to the status: to those that are stored, or to those that are left out.
func (in *input) addVolumes(status *harvesterv1.VirtualMachineBackupStatus) *plan {
	names, err := volumeNames(in.machine)
	if err != nil {
		p := refusePlan("%v", err)
		return &p
	}
	excluded, unknown := in.excludedByUser(names)
	if unknown != "" {
		p := refusePlan("the annotation %s names %.80q, and virtual machine %s has no such volume",
			harvesterv1.AnnotationExcludeVolumes, unknown, in.machine.GetName())
		return &p
	}
	for _, name := range names {
		if why := in.reasonToExclude(name, excluded); why != nil {
			status.ExcludedVolumes = append(status.ExcludedVolumes, *why)
			continue
		}
		claim := in.claims[claimOf(in.guestSpec(), name)]
		if claim == nil {
			p := waitFor("PersistentVolumeClaim %s of volume %s", claimOf(in.guestSpec(), name), name)
			return &p
		}
		status.VolumeBackups = append(status.VolumeBackups, harvesterv1.VolumeBackup{
			Name: ptr.To(in.backup.Name + "-volume-" + claim.Name), VolumeName: name,
			CSIDriverName: in.drivers[claim.Name],
			PersistentVolumeClaim: harvesterv1.PersistentVolumeClaimSourceSpec{
				ObjectMeta: harvesterv1.ObjectMetadata{
					Name: claim.Name, Namespace: claim.Namespace,
					Labels: claim.Labels, Annotations: claim.Annotations,
				},
				Spec: claim.Spec,
			},
			VolumeSize: tracking.ClaimBytes(claim), ReadyToUse: ptr.To(false),
		})
	}
	status.ExcludedVolumes = append(status.ExcludedVolumes, in.hotPlugged(names)...)
	var p plan
	switch n := len(status.VolumeBackups); {
	case n == 0:
		p = refusePlan("virtual machine %s has no disk that can be stored: %s", in.machine.GetName(),
			describeExcluded(status.ExcludedVolumes))
	case isSnapshot(in.backup):
		return nil
	case n > datamove.MaxGroupDisks:
		p = refusePlan("virtual machine %s has %d disks, and a backup has %d at most: leave some out with the annotation %s", in.machine.GetName(), n, datamove.MaxGroupDisks, harvesterv1.AnnotationExcludeVolumes)
	default:
		for i := range status.VolumeBackups {
			v := &status.VolumeBackups[i]
			v.DataUpload = uploadName(status.Group, v.VolumeName)
		}
		return nil
	}
	return &p
}

// hotPlugged returns the volumes that the guest has and the machine does not: no definition would say what they are for.
func (in *input) hotPlugged(names []string) (all []harvesterv1.ExcludedVolume) {
	guest := in.guestSpec()
	if guest == nil {
		return nil
	}
	for _, v := range guest.Volumes {
		if !slices.Contains(names, v.Name) {
			all = append(all, harvesterv1.ExcludedVolume{
				Name: v.Name, Reason: harvesterv1.HotPlugged,
				Message: "it was plugged into the running guest alone: add it to the virtual machine to have it backed up",
			})
		}
	}
	return all
}

// excludedByUser returns the volumes that the user leaves out, and one that the machine does not have, or "".
func (in *input) excludedByUser(names []string) (excluded []string, unknown string) {
	for name := range strings.SplitSeq(in.backup.Annotations[harvesterv1.AnnotationExcludeVolumes], ",") {
		name = strings.TrimSpace(name)
		if name == "" {
			continue
		}
		if !slices.Contains(names, name) {
			return nil, name
		}
		excluded = append(excluded, name)
	}
	return excluded, ""
}

// reasonToExclude says why a volume is not in the backup, or nil.
func (in *input) reasonToExclude(volume string, byUser []string) *harvesterv1.ExcludedVolume {
	spec := in.guestSpec()
	why := func(reason harvesterv1.ExclusionReason, message string) *harvesterv1.ExcludedVolume {
		return &harvesterv1.ExcludedVolume{Name: volume, Reason: reason, Message: message}
	}
	switch {
	case slices.Contains(byUser, volume):
		return why(harvesterv1.ExcludedByUser, "the annotation "+harvesterv1.AnnotationExcludeVolumes+" names it")
	case !slices.ContainsFunc(spec.Volumes, func(v kubevirtv1.Volume) bool { return v.Name == volume }):
		return why(harvesterv1.NotRunningYet,
			"the guest gets it with its next start: restart the machine before its next backup")
	case claimOf(spec, volume) == "":
		return why(harvesterv1.NoClaim,
			"it is on no PersistentVolumeClaim: what makes it is in the definition of the machine")
	case slices.Contains(tracking.EligibleVolumes(spec), volume):
		return nil
	case tracking.IsShareable(spec, volume):
		return why(harvesterv1.Shareable,
			"several guests may write to it, so that no moment of one of them is a moment of the disk")
	case tracking.IsReadOnly(spec, volume):
		return why(harvesterv1.ReadOnly, "the guest cannot write to it: the restored machine uses the same claim")
	}
	return why(harvesterv1.NoDisk, "no disk of the guest is on it")
}

func describeExcluded(volumes []harvesterv1.ExcludedVolume) string {
	if len(volumes) == 0 {
		return "it has no volumes"
	}
	var texts []string
	for _, v := range volumes {
		texts = append(texts, fmt.Sprintf("%s (%s)", v.Name, v.Reason))
	}
	return strings.Join(texts, ", ") + " are left out"
}

// volumeNames returns the names of the machine's volumes.
func volumeNames(vm *unstructured.Unstructured) ([]string, error) {
	volumes, _, err := unstructured.NestedSlice(vm.Object, "spec", "template", "spec", "volumes")
	if err != nil {
		return nil, fmt.Errorf("volumes of virtual machine %s: %w", vm.GetName(), err)
	}
	var names []string
	for _, v := range volumes {
		fields, _ := v.(map[string]any)
		if name, _ := fields["name"].(string); name != "" {
			names = append(names, name)
		}
	}
	return names, nil
}

// claimOf returns the claim that a volume of a guest is on, or "".
func claimOf(guest *kubevirtv1.VirtualMachineInstanceSpec, volume string) string {
	for _, v := range guest.Volumes {
		if v.Name == volume && v.PersistentVolumeClaim != nil {
			return v.PersistentVolumeClaim.ClaimName
		}
	}
	return ""
}

// addressesOf returns the hardware addresses of a running guest by the names of its networks.
func addressesOf(instance *kubevirtv1.VirtualMachineInstance) map[string]string {
	addresses := map[string]string{}
	for _, i := range instance.Status.Interfaces {
		if i.Name != "" && i.MAC != "" {
			addresses[i.Name] = i.MAC
		}
	}
	return addresses
}

func targetOf(l *velerov1.BackupStorageLocation) *harvesterv1.BackupTarget {
	if l.Spec.ObjectStorage == nil || l.Spec.Provider != "aws" && l.Spec.Provider != "velero.io/aws" {
		return nil
	}
	return &harvesterv1.BackupTarget{
		Endpoint: l.Spec.Config["s3Url"], BucketName: l.Spec.ObjectStorage.Bucket,
		BucketRegion: l.Spec.Config["region"],
	}
}

// scratchBytes returns how large the claim is that takes in what the guest overwrites while its disks are read: what the
// user says, or all of small disks, and a tenth of large ones. Every tracked disk counts: the hypervisor keeps what is overwritten on those
// that are left out, too.
func (in *input) scratchBytes() (int64, error) {
	if text, has := in.backup.Annotations[harvesterv1.AnnotationScratchSize]; has {
		size, err := resource.ParseQuantity(text)
		if err != nil || size.Sign() <= 0 {
			return 0, fmt.Errorf("the annotation %s is %q: it must be a size, such as 20Gi", harvesterv1.AnnotationScratchSize, text)
		}
		return size.Value(), nil
	}
	const (
		mib   = 1 << 20
		small = 10 << 30
	)
	var sum, disks int64
	for _, volume := range tracking.EligibleVolumes(in.guestSpec()) {
		if claim := in.claims[claimOf(in.guestSpec(), volume)]; claim != nil {
			sum += tracking.ClaimBytes(claim)
			disks++
		}
	}
	room := 64*mib + disks*8*mib // what a backup wants to be free, and metadata
	return min(sum, max(small, sum/10)) + room, nil
}

// staticProvisioner is that of classes whose volumes nobody makes.
const staticProvisioner = "kubernetes.io/no-provisioner"

// scratchClass returns the StorageClass of that claim: that of the annotation, or of a disk which is a file and whose
// volume was made for it. nil is the cluster's default.
func scratchClass(b *harvesterv1.VirtualMachineBackup) *string {
	if name := b.Annotations[harvesterv1.AnnotationScratchClass]; name != "" {
		return &name
	}
	for _, v := range b.Status.VolumeBackups {
		made := v.CSIDriverName != "" && v.CSIDriverName != staticProvisioner
		if spec := v.PersistentVolumeClaim.Spec; made && !tracking.IsBlock(spec.VolumeMode) {
			return spec.StorageClassName
		}
	}
	return nil
}

// scratchRequest is the request of that claim.
func scratchRequest(bytes int64) corev1.VolumeResourceRequirements {
	return corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(bytes, resource.BinarySI)}}
}
