package virtualmachinesnapshot

import (
	"fmt"
	"slices"
	"strings"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	vmsnapshotv1 "github.com/varvebackup/varve/api/snapshot/v1beta1"
	"github.com/varvebackup/varve/internal/definition"
	"github.com/varvebackup/varve/internal/tracking"
)

// obstacle is why a snapshot cannot go on: it waits for something, or it fails.
type obstacle struct {
	message string
	fails   bool
}

func waitFor(format string, args ...any) *obstacle {
	return &obstacle{message: fmt.Sprintf(format, args...)}
}

func failWith(format string, args ...any) *obstacle {
	return &obstacle{message: fmt.Sprintf(format, args...), fails: true}
}

// volumePlan says which volumes of the machine are in the snapshot.
type volumePlan struct {
	included []vmsnapshotv1.VolumeBackup
	excluded []string
	// classes are the VolumeSnapshotClasses of the included volumes, by the names of the volumes.
	classes map[string]string
}

// checkMachine says why no snapshot of the machine can begin now, or returns nil.
func (in *input) checkMachine() *obstacle {
	name := in.snapshot.Namespace + "/" + in.snapshot.Spec.Source.Name
	switch i := in.instance; {
	case in.machine == nil:
		return failWith("virtual machine %s does not exist: create a snapshot whose spec.source.name names one "+
			"that does", name)
	case in.machine.GetDeletionTimestamp() != nil:
		return failWith("virtual machine %s is being deleted", name)
	case !in.isRunning():
		return in.checkStopped(name)
	case i.DeletionTimestamp != nil:
		return waitFor("virtual machine %s to have stopped", name)
	case i.Status.Phase != kubevirtv1.PhaseRunning:
		return waitFor("virtual machine %s to run: its instance is %s", name, i.Status.Phase)
	case !i.Status.MigrationState.Ended():
		return waitFor("the migration of virtual machine %s to end", name)
	case len(i.Status.ActivePods) > 1:
		return waitFor("virtual machine %s to have one launcher pod: it has %d", name, len(i.Status.ActivePods))
	}
	return nil
}

// checkStopped says why no snapshot of a machine can begin that does not run, or returns nil.
func (in *input) checkStopped(name string) *obstacle {
	vm := in.typedMachine()
	if vm == nil {
		return failWith("the definition of virtual machine %s cannot be read: it has no template", name)
	}
	if why := definition.AboutToRun(vm); why != "" {
		return waitFor("virtual machine %s to run: %s", name, why)
	}
	return nil
}

// planVolumes chooses the volumes, or says what is in the way.
func (in *input) planVolumes() (*volumePlan, *obstacle) {
	if in.notInstalled {
		return nil, failWith("this cluster does not have the kinds of snapshots (snapshot.storage.k8s.io): " +
			"install the CRDs and the controller of kubernetes-csi/external-snapshotter, and create another snapshot")
	}
	guest := in.guestSpec()
	p := &volumePlan{classes: map[string]string{}}
	for _, v := range guest.Volumes {
		if o := in.planVolume(p, guest, v); o != nil {
			return nil, o
		}
	}
	if vm := in.typedMachine(); vm != nil {
		for _, v := range vm.Spec.Template.Spec.Volumes { // the guest that runs gets it with its next start
			has := func(w kubevirtv1.Volume) bool { return w.Name == v.Name }
			if !slices.ContainsFunc(guest.Volumes, has) {
				p.excluded = append(p.excluded, v.Name)
			}
		}
	}
	if len(p.included) == 0 {
		return nil, failWith("virtual machine %s has no volume of which the storage makes snapshots",
			in.snapshot.Spec.Source.Name)
	}
	return p, nil
}

// planVolume includes or excludes a volume, or says what is in the way.
func (in *input) planVolume(p *volumePlan, guest *kubevirtv1.VirtualMachineInstanceSpec, v kubevirtv1.Volume) *obstacle {
	writable := slices.Contains(tracking.EligibleVolumes(guest), v.Name)
	readOnly := tracking.IsReadOnly(guest, v.Name) && !tracking.IsShareable(guest, v.Name)
	if v.PersistentVolumeClaim == nil || !writable && !readOnly || isLeftOut(in.snapshot, v.Name) {
		p.excluded = append(p.excluded, v.Name)
		return nil
	}
	c, there := in.claims[v.PersistentVolumeClaim.ClaimName]
	if !there {
		return waitFor("PersistentVolumeClaim %s of volume %s", v.PersistentVolumeClaim.ClaimName, v.Name)
	}
	if !c.bound {
		return waitFor("PersistentVolumeClaim %s of volume %s to be bound", c.Name, v.Name)
	}
	class, why := chooseClass(in.classes, c.driver)
	switch {
	case class != "":
		p.included = append(p.included, newVolumeBackup(in.snapshot.UID, v.Name, c.PersistentVolumeClaim))
		p.classes[v.Name] = class
		return nil
	case writable:
		return failWith("the storage cannot make a snapshot of volume %s (PersistentVolumeClaim %s): %s", v.Name,
			c.Name, why)
	}
	p.excluded = append(p.excluded, v.Name)
	return nil
}

// isLeftOut says whether the user does not want a volume in a snapshot.
func isLeftOut(s *vmsnapshotv1.VirtualMachineSnapshot, volume string) bool {
	for name := range strings.SplitSeq(s.Annotations[vmsnapshotv1.AnnotationExcludeVolumes], ",") {
		if strings.TrimSpace(name) == volume {
			return true
		}
	}
	return false
}

// annotationDefaultClass marks the class that a driver's snapshots have if they name none.
const annotationDefaultClass = "snapshot.storage.kubernetes.io/is-default-class"

// chooseClass returns the VolumeSnapshotClass of a driver's snapshots: the default one, or else the only one, of those
// whose snapshots the storage deletes with their objects, if there are any. Otherwise it says why there is none.
func chooseClass(all []snapshotv1.VolumeSnapshotClass, driver string) (class, why string) {
	if driver == "" {
		return "", "its volume has no CSI driver: move the disk to a StorageClass of one"
	}
	var names, defaults []string
	deletes := func(c snapshotv1.VolumeSnapshotClass) bool {
		return c.Driver == driver && c.DeletionPolicy != snapshotv1.VolumeSnapshotContentRetain
	}
	leaky := !slices.ContainsFunc(all, deletes)
	for i := range all {
		if all[i].Driver != driver || !leaky && !deletes(all[i]) {
			continue
		}
		names = append(names, all[i].Name)
		if all[i].Annotations[annotationDefaultClass] == "true" {
			defaults = append(defaults, all[i].Name)
		}
	}
	switch {
	case len(defaults) == 1:
		return defaults[0], ""
	case len(defaults) > 1:
		return "", fmt.Sprintf("the VolumeSnapshotClasses %s are all the default one of the driver %s: take the "+
			"annotation %s from all but one",
			strings.Join(defaults, ", "), driver, annotationDefaultClass)
	case len(names) == 1:
		return names[0], ""
	case len(names) > 1:
		return "", fmt.Sprintf("the driver %s has the VolumeSnapshotClasses %s, and none is the default one: give "+
			"one the annotation %s: \"true\"",
			driver, strings.Join(names, ", "), annotationDefaultClass)
	}
	return "", fmt.Sprintf("there is no VolumeSnapshotClass of the driver %s: create one if the driver makes "+
		"snapshots", driver)
}

// freezeWanted says whether the guest is to be frozen, or what is wrong with the annotation that says so.
func freezeWanted(s *vmsnapshotv1.VirtualMachineSnapshot) (wanted bool, o *obstacle) {
	text, has := s.Annotations[vmsnapshotv1.AnnotationFreezeDeadline]
	if !has || text == "false" {
		return !has, nil
	}
	if d, err := time.ParseDuration(text); err != nil || d < 0 {
		return false, failWith("the annotation %s is %.80q: make it a duration such as 5s, or \"false\" for a "+
			"guest that is not to be frozen",
			vmsnapshotv1.AnnotationFreezeDeadline, text)
	}
	return true, nil
}

// isPaused says whether the guest is paused, so that its agent cannot answer.
func isPaused(i *kubevirtv1.VirtualMachineInstance) bool {
	return slices.ContainsFunc(i.Status.Conditions, func(c kubevirtv1.Condition) bool {
		return c.Type == kubevirtv1.ConditionPaused && c.Status == corev1.ConditionTrue
	})
}
