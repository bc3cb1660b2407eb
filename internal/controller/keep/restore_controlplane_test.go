//go:build controlplane

package keep

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/controlplane"
	"github.com/varvebackup/varve/test/gen"
)

func (w *world) newRestore(b *harvesterv1.VirtualMachineBackup, edit ...func(*harvesterv1.VirtualMachineRestoreSpec)) *harvesterv1.VirtualMachineRestore {
	r := &harvesterv1.VirtualMachineRestore{ObjectMeta: w.meta("back"), Spec: harvesterv1.VirtualMachineRestoreSpec{
		Target: *gen.Source("web"), VirtualMachineBackupName: b.Name, VirtualMachineBackupNamespace: b.Namespace,
		NewVM: true, KeepMacAddress: true,
	}}
	for _, f := range edit {
		f(&r.Spec)
	}
	return r
}

// downloads waits for the DataDownloads of a restore.
func (w *world) downloads(r *harvesterv1.VirtualMachineRestore) map[string]*velerov2.DataDownload {
	w.Helper()
	wait(w, r, func(r *harvesterv1.VirtualMachineRestore) error {
		if len(r.Status.VolumeRestores) == 0 {
			return fmt.Errorf("nothing is planned: %+v", r.Status)
		}
		return nil
	})
	all := map[string]*velerov2.DataDownload{}
	for _, v := range r.Status.VolumeRestores {
		d := &velerov2.DataDownload{ObjectMeta: metav1.ObjectMeta{
			Namespace: r.Status.Location.Namespace,
			Name:      v.DataDownload,
		}}
		all[v.VolumeName] = wait(w, d, exists)
	}
	if name := r.Status.DefinitionDownload; name != "" {
		w.readBack(*r.Status.Location, name, velerov2.PhaseCompleted, "", nil)
	}
	return all
}

// readBack plays the mover pod that reads a definition.
func (w *world) readBack(at harvesterv1.LocationReference, name string, phase velerov2.Phase, message string, disks []datamove.StoredDisk) {
	w.Helper()
	d := wait(w, &velerov2.DataDownload{ObjectMeta: metav1.ObjectMeta{Namespace: at.Namespace, Name: name}}, exists)
	pod := datamove.ChildName(datamove.Download, d.UID)
	secret := wait(w, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: at.Namespace, Name: pod}}, exists)
	if phase == velerov2.PhaseCompleted {
		user := controlplane.ServiceAccount(controlplane.SystemNamespace, datamove.ServiceAccount)
		user.Extra = map[string][]string{"authentication.kubernetes.io/pod-name": {pod}}
		body, err := json.Marshal(map[string]any{"data": map[string][]byte{
			datamove.DefinitionKey: w.definition, datamove.DisksKey: datamove.EncodeDisks(disks),
		}})
		w.must(err)
		w.must(cluster.Client(w.T, user.Restrict()).Patch(w.Context(), secret,
			client.RawPatch(types.MergePatchType, body)))
	}
	w.downloaded(d, phase, message)
}

func (w *world) downloaded(d *velerov2.DataDownload, phase velerov2.Phase, message string) {
	w.Helper()
	controlplane.Update(w.T, w.admin, d, false, func(d *velerov2.DataDownload) {
		d.Status.Phase,
			d.Status.Message = phase, message
	})
}

func (w *world) complete(r *harvesterv1.VirtualMachineRestore) {
	w.Helper()
	wait(w, r, func(r *harvesterv1.VirtualMachineRestore) error {
		if !r.IsComplete() || r.Labels[layout.LabelEnded] != "true" || r.Status.Progress != 100 {
			return fmt.Errorf("labels %v, status %+v", r.Labels, r.Status)
		}
		return nil
	})
}

// restored: new claims, the machine as it was, and its start.
func restored(w *world) {
	b := w.ready("monday")
	r := w.newRestore(b)
	w.create(r)
	downloads := w.downloads(r)
	// The backup stays while it is read.
	w.must(w.admin.Delete(w.Context(), b))
	w.backupSays(b, says(harvesterv1.ConditionProgressing, corev1.ConditionTrue, "Deleting",
		"VirtualMachineRestore "+w.ns+"/back to end"))
	for i := range r.Status.VolumeRestores {
		v := &r.Status.VolumeRestores[i]
		name := v.PersistentVolumeClaim.ObjectMeta.Name
		if name != "restore-monday-"+string(r.UID)+"-"+v.VolumeName {
			w.Errorf("claim %s", name)
		}
		claim := wait(w, &corev1.PersistentVolumeClaim{ObjectMeta: w.meta(name)}, exists)
		if claim.Spec.Selector.MatchLabels[datamove.LabelRestoredVolume] == "" ||
			claim.Spec.Resources.Requests.Storage().Value() != 1<<30 || claim.Spec.VolumeName != "" {
			w.Errorf("claim %+v", claim.Spec)
		}
		if spec := downloads[v.VolumeName].Spec; spec.TargetVolume.PVC != name || spec.SnapshotID == "" ||
			spec.BackupStorageLocation != shelf || spec.SourceNamespace != w.ns {
			w.Errorf("DataDownload %+v", spec)
		}
	}
	for _, d := range downloads {
		w.downloaded(d, velerov2.PhaseCompleted, "")
	}
	vm := wait(w, &kubevirtv1.VirtualMachine{ObjectMeta: w.meta("web")}, func(vm *kubevirtv1.VirtualMachine) error {
		if vm.Spec.Strategy() != kubevirtv1.RunStrategyAlways {
			return fmt.Errorf("strategy %s", vm.Spec.Strategy())
		}
		return nil
	})
	w.restoreSays(r, says(harvesterv1.ConditionProgressing, corev1.ConditionTrue, "",
		"Waiting for target vm to be ready: waits for virtual machine web is "))
	for key := range vm.Annotations {
		if strings.HasPrefix(key, layout.Prefix) && key != harvesterv1.AnnotationRestoredFrom {
			w.Errorf("annotation %s is left", key)
		}
	}
	volumes := map[string]string{}
	for _, v := range vm.Spec.Template.Spec.Volumes {
		volumes[v.Name] = v.PersistentVolumeClaim.ClaimName
	}
	if volumes["root"] != "restore-monday-"+string(r.UID)+"-root" || volumes["shared"] != "web-shared" ||
		vm.Labels["tier"] != "front" {
		w.Errorf("volumes %v, labels %v", volumes, vm.Labels)
	}
	if mac := vm.Spec.Template.Spec.Domain.Devices.Interfaces[0].MacAddress; mac != "02:00:00:00:00:07" {
		w.Errorf("address %q", mac)
	}
	controlplane.Update(w.T, w.varve, vm, true, func(vm *kubevirtv1.VirtualMachine) { vm.Status.Ready = true })
	w.complete(r)
	if *r.Status.TargetUID != vm.UID || len(r.OwnerReferences) != 1 || r.OwnerReferences[0].UID != vm.UID {
		w.Errorf("target %v, owners %+v", r.Status.TargetUID, r.OwnerReferences)
	}
	for _, d := range downloads {
		w.gone(d)
	}
	w.gone(b)

	// The machine's claims are the machine's.
	w.must(w.admin.Delete(w.Context(), r))
	w.gone(r)
	wait(w, &corev1.PersistentVolumeClaim{ObjectMeta: w.meta(volumes["root"])},
		func(c *corev1.PersistentVolumeClaim) error {
			if c.DeletionTimestamp != nil {
				w.Error("the claim of the machine is deleted with the restore")
			}
			return nil
		})
}

// halted: the machine is made, and not started, with addresses of its own.
func halted(w *world) {
	b := w.ready("monday")
	r := w.newRestore(b, func(s *harvesterv1.VirtualMachineRestoreSpec) {
		s.HaltAfterRestore, s.KeepMacAddress, s.Target.Name = true, false, "other"
	})
	w.create(r)
	for _, d := range w.downloads(r) {
		w.downloaded(d, velerov2.PhaseCompleted, "")
	}
	w.complete(r)
	vm := wait(w, &kubevirtv1.VirtualMachine{ObjectMeta: w.meta("other")}, exists)
	if mac := vm.Spec.Template.Spec.Domain.Devices.Interfaces[0].MacAddress; vm.Spec.Strategy() != kubevirtv1.RunStrategyHalted || mac != "" {
		w.Errorf("strategy %s, address %q", vm.Spec.Strategy(), mac)
	}
}

// startsOnRequest: a machine that starts on request has its strategy when it gets the request, which is made until the
// machine shows it.
func startsOnRequest(w *world) {
	vm, guest := w.machine(kubevirtv1.RunStrategyManual)
	vmi := w.start(guest)
	b := w.makeReady("monday")
	for _, o := range []client.Object{vm, vmi} {
		w.must(w.varve.Delete(w.Context(), o))
		w.gone(o)
	}
	r := w.newRestore(b)
	w.create(r)
	for _, d := range w.downloads(r) {
		w.downloaded(d, velerov2.PhaseCompleted, "")
	}
	asked := func(vm *kubevirtv1.VirtualMachine) error {
		requests := vm.Status.StateChangeRequests
		if vm.Spec.Strategy() != kubevirtv1.RunStrategyManual || len(requests) != 1 ||
			requests[0].Action != kubevirtv1.StartRequest {
			return fmt.Errorf("strategy %s, requests %+v", vm.Spec.Strategy(), requests)
		}
		for key := range vm.Annotations {
			if key == layout.Prefix+"restored-run-strategy" {
				return errors.New("the restore still wants to start it")
			}
		}
		return nil
	}
	vm = wait(w, &kubevirtv1.VirtualMachine{ObjectMeta: w.meta("web")}, asked)
	controlplane.Update(w.T, w.varve, vm, true, func(vm *kubevirtv1.VirtualMachine) {
		vm.Status.StateChangeRequests, vm.Status.Created, vm.Status.Ready = nil, true, true
	})
	w.complete(r)
	if vm = wait(w, vm, exists); len(vm.Status.StateChangeRequests) != 0 {
		w.Errorf("it is asked to start again: %+v", vm.Status.StateChangeRequests)
	}
}

// nameTaken: a machine of the name that is there, or comes meanwhile, is left as it is.
func nameTaken(w *world) {
	b := w.ready("monday")
	stranger := gen.VirtualMachine(w.meta("web"), gen.Guest(gen.Disk("mine", "mine")))
	w.create(stranger)
	r := w.newRestore(b)
	w.create(r)
	w.restoreSays(r, says(harvesterv1.ConditionProgressing, corev1.ConditionFalse, harvesterv1.ReasonError,
		"VM web is already exists"))
	w.must(w.admin.Delete(w.Context(), r))
	w.gone(r)

	late := w.newRestore(b, func(s *harvesterv1.VirtualMachineRestoreSpec) { s.Target.Name = "late" })
	w.create(late)
	downloads := w.downloads(late)
	other := gen.VirtualMachine(w.meta("late"), gen.Guest(gen.Disk("mine", "mine")))
	w.create(other)
	for _, d := range downloads {
		w.downloaded(d, velerov2.PhaseCompleted, "")
	}
	w.restoreSays(late, says(harvesterv1.ConditionProgressing, corev1.ConditionFalse, harvesterv1.ReasonError,
		"was made by somebody else meanwhile, and is left as it is"))
	for _, vm := range []*kubevirtv1.VirtualMachine{stranger, other} {
		have := wait(w, &kubevirtv1.VirtualMachine{ObjectMeta: w.meta(vm.Name)}, exists)
		if have.UID != vm.UID || have.Generation != vm.Generation {
			w.Errorf("machine %s was changed", vm.Name)
		}
	}
}

// downloadFails: what was made goes with the restore.
func downloadFails(w *world) {
	b := w.ready("monday")
	r := w.newRestore(b)
	w.create(r)
	downloads := w.downloads(r)
	w.downloaded(downloads["root"], velerov2.PhaseFailed, "no space on the node")
	data := wait(w, downloads["data"], func(d *velerov2.DataDownload) error {
		if !d.Spec.Cancel {
			return fmt.Errorf("not canceled: %+v", d.Spec)
		}
		return nil
	})
	w.downloaded(data, velerov2.PhaseCanceled, "")
	w.restoreSays(r, says(harvesterv1.ConditionReady, corev1.ConditionFalse, harvesterv1.ReasonError,
		"volume root: DataDownload "+downloads["root"].Name+" is Failed: no space on the node"))
	w.must(w.admin.Delete(w.Context(), r))
	w.gone(r)
	for i := range r.Status.VolumeRestores {
		w.deleted(r.Status.VolumeRestores[i].PersistentVolumeClaim.ObjectMeta.Name)
	}
	for _, d := range downloads {
		w.gone(d)
	}
}

// doesNotStart: the restore repeats what the machine says, and says that the machine was deleted.
func doesNotStart(w *world) {
	b := w.ready("monday")
	r := w.newRestore(b)
	w.create(r)
	for _, d := range w.downloads(r) {
		w.downloaded(d, velerov2.PhaseCompleted, "")
	}
	vm := wait(w, &kubevirtv1.VirtualMachine{ObjectMeta: w.meta("web")}, exists)
	controlplane.Update(w.T, w.varve, vm, true, func(vm *kubevirtv1.VirtualMachine) {
		vm.Status.PrintableStatus = kubevirtv1.VirtualMachineStarting
		vm.Status.Conditions = []kubevirtv1.Condition{{
			Type: kubevirtv1.ConditionReady, Status: corev1.ConditionFalse,
			Reason: "PodNotReady", Message: "no node has room",
		}}
	})
	w.restoreSays(r, says(harvesterv1.ConditionReady, corev1.ConditionFalse, "",
		"virtual machine web is Starting: no node has room"))
	w.must(w.admin.Delete(w.Context(), vm))
	w.restoreSays(r, says(harvesterv1.ConditionReady, corev1.ConditionFalse, harvesterv1.ReasonError,
		"virtual machine web was deleted before it was ready"))
}

// notAccepted: the API server refuses what could never work, and names the field.
func notAccepted(w *world) {
	b := w.newBackup("monday", nil)
	w.create(b)
	for name, c := range map[string]struct {
		edit  func(*harvesterv1.VirtualMachineRestoreSpec)
		words string
	}{
		"deleting the claims of no machine": {
			func(s *harvesterv1.VirtualMachineRestoreSpec) { s.DeletionPolicy = harvesterv1.DeletionPolicyDelete },
			"spec.deletionPolicy: Invalid value: deletionPolicy delete is for a machine that is replaced",
		},
		"a bad name": {
			func(s *harvesterv1.VirtualMachineRestoreSpec) { s.Target.Name = "We b" },
			"spec.target.name: Invalid value: Target VM name is invalid",
		},
		"another kind": {
			func(s *harvesterv1.VirtualMachineRestoreSpec) { s.Target.Kind = "Pod" },
			"spec.target.kind: Invalid value: kind must be VirtualMachine",
		},
		"another group": {
			func(s *harvesterv1.VirtualMachineRestoreSpec) { s.Target.APIGroup = ptr.To("v1") },
			"spec.target.apiGroup",
		},
		"without backup": {
			func(s *harvesterv1.VirtualMachineRestoreSpec) { s.VirtualMachineBackupName = "" },
			"spec.virtualMachineBackupName",
		},
	} {
		w.Run(name, func(t *testing.T) {
			if err := w.admin.Create(t.Context(), w.newRestore(b, c.edit)); err == nil ||
				!strings.Contains(err.Error(), c.words) {
				t.Errorf("%v, want %q", err, c.words)
			}
		})
	}
	for name, c := range map[string]struct {
		edit  func(*harvesterv1.VirtualMachineBackup)
		words string
	}{
		"another source": {
			func(b *harvesterv1.VirtualMachineBackup) { b.Spec.Source.Name = "db" },
			"spec.source is immutable",
		},
		"marked as ended": {func(b *harvesterv1.VirtualMachineBackup) { b.Labels = map[string]string{layout.LabelEnded: "mine"} }, "only Varve's controller sets the label"},
		"of type snapshot": {
			func(b *harvesterv1.VirtualMachineBackup) { b.Spec.Type = harvesterv1.Snapshot },
			"spec.type is immutable",
		},
		"of something else": {
			func(b *harvesterv1.VirtualMachineBackup) { b.Spec.Source.Kind = "Pod" },
			"spec.source.kind: Invalid value: kind must be VirtualMachine",
		},
	} {
		w.Run(name, func(t *testing.T) {
			controlplane.Eventually(t, func() error {
				have := &harvesterv1.VirtualMachineBackup{ObjectMeta: w.meta(b.Name)}
				if err := w.admin.Get(t.Context(), client.ObjectKeyFromObject(have), have); err != nil {
					return err
				}
				c.edit(have)
				if err := w.admin.Update(t.Context(), have); err == nil || !strings.Contains(err.Error(), c.words) {
					return fmt.Errorf("%w, want %q", err, c.words)
				}
				return nil
			})
		})
	}
	err := w.admin.Status().Patch(w.Context(), b, client.RawPatch(types.MergePatchType, []byte(`{"status":{"readyToUse":true}}`)))
	if err == nil || !strings.Contains(err.Error(), "only Varve's components write status") {
		w.Errorf("a status that a user writes: %v", err)
	}
}

// anotherNamespace: whoever restores a backup of another namespace must be allowed to read it.
func anotherNamespace(w *world) {
	b := w.ready("monday")
	elsewhere := cluster.Namespace(w)
	tenant := controlplane.ServiceAccount(elsewhere, "tenant").Restrict()
	role := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: elsewhere, Name: "tenant"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "varve-edit"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: elsewhere, Name: "tenant"}},
	}
	w.create(role)
	c := cluster.Client(w.T, tenant)
	r := w.newRestore(b)
	r.Namespace = elsewhere
	controlplane.Eventually(w, func() error { // the binding takes a moment
		if err := c.Create(w.Context(), r.DeepCopy()); err == nil ||
			!strings.Contains(err.Error(), "you may not read the backup") {
			return fmt.Errorf("a tenant without the right: %w", err)
		}
		return nil
	})
	read := role.DeepCopy()
	read.ResourceVersion, read.Namespace, read.Name, read.RoleRef.Name = "", w.ns, "reader", "varve-view"
	w.create(read)
	controlplane.Eventually(w, func() error {
		if err := c.Create(w.Context(), r.DeepCopy()); err == nil ||
			!strings.Contains(err.Error(), "you may not read those of the namespace") {
			return fmt.Errorf("a tenant who may not read the Secrets: %w", err)
		}
		return nil
	})
	secrets := &rbacv1.Role{ObjectMeta: w.meta("secrets"), Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"get"},
	}}}
	w.create(secrets)
	get := read.DeepCopy()
	get.ResourceVersion, get.Name, get.RoleRef.Kind, get.RoleRef.Name = "", "secrets", "Role", "secrets"
	w.create(get)
	controlplane.Eventually(w, func() error { return c.Create(w.Context(), r) })
	claims := w.downloads(r)["root"].Spec
	if claims.TargetVolume.Namespace != elsewhere || claims.SourceNamespace != w.ns {
		w.Errorf("DataDownload %+v", claims)
	}
}
