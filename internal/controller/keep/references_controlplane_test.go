//go:build controlplane

package keep

import (
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/test/controlplane"
)

func halt(s *harvesterv1.VirtualMachineRestoreSpec) { s.HaltAfterRestore = true }

// pullSecret returns the name of the Secret that a machine refers to.
func pullSecret(vm *kubevirtv1.VirtualMachine) string {
	return vm.Spec.Template.Spec.Domain.Firmware.KernelBoot.Container.ImagePullSecret
}

func (w *world) wantSecret(name, key string, owners int) *corev1.Secret {
	w.Helper()
	return wait(w, &corev1.Secret{ObjectMeta: w.meta(name)}, func(s *corev1.Secret) error {
		if string(s.Data["key"]) != key || len(s.OwnerReferences) != owners {
			return fmt.Errorf("Secret %s has %q and owners %v", name, s.Data["key"], s.OwnerReferences)
		}
		return nil
	})
}

// secretComesBack: the Secret that the machine refers to is gone, and is made again under its name. It is not the
// machine's: others may refer to it by then.
func secretComesBack(w *world) {
	b := w.ready("monday")
	w.must(w.admin.Delete(w.Context(), &corev1.Secret{ObjectMeta: w.meta("pull")}))
	r := w.newRestore(b, halt)
	w.create(r)
	for _, d := range w.downloads(r) {
		w.downloaded(d, velerov2.PhaseCompleted, "")
	}
	w.complete(r)
	vm := wait(w, &kubevirtv1.VirtualMachine{ObjectMeta: w.meta("web")}, exists)
	if pullSecret(vm) != "pull" {
		w.Errorf("the machine refers to %s", pullSecret(vm))
	}
	w.wantSecret("pull", "hidden words", 0)
	w.gone(&velerov2.DataDownload{ObjectMeta: metav1.ObjectMeta{
		Namespace: controlplane.SystemNamespace,
		Name:      r.Status.DefinitionDownload,
	}})
	var left corev1.SecretList
	w.must(w.admin.List(w.Context(), &left))
	for _, s := range left.Items {
		if s.Namespace == controlplane.SystemNamespace &&
			s.Labels["varvebackup.io/machine-restore-uid"] == string(r.UID) {
			w.Errorf("Secret %s with the definition is left", s.Name)
		}
	}
}

// secretOfAnother: a Secret of that name is another one. It stays as it is, and the machine gets one of its own.
func secretOfAnother(w *world) {
	b := w.ready("monday")
	controlplane.Update(w.T, w.admin, &corev1.Secret{ObjectMeta: w.meta("pull")}, false,
		func(s *corev1.Secret) { s.Data = map[string][]byte{"key": []byte("another")} })
	r := w.newRestore(b, halt)
	w.create(r)
	for _, d := range w.downloads(r) {
		w.downloaded(d, velerov2.PhaseCompleted, "")
	}
	w.complete(r)
	vm := wait(w, &kubevirtv1.VirtualMachine{ObjectMeta: w.meta("web")}, exists)
	name := pullSecret(vm)
	if !strings.HasPrefix(name, "web-pull-") {
		w.Errorf("the machine refers to %s", name)
	}
	w.wantSecret("pull", "another", 0)
	if s := w.wantSecret(name, "hidden words", 1); s.OwnerReferences[0].UID != vm.UID {
		w.Errorf("owners %+v", s.OwnerReferences)
	}
}

// definitionUnreadable: the disks come back. The machine does as well if it has all that it refers to, and otherwise the
// restore says what is missing.
func definitionUnreadable(w *world) {
	b := w.ready("monday")
	fail := func(r *harvesterv1.VirtualMachineRestore) {
		w.create(r)
		wait(w, r, func(r *harvesterv1.VirtualMachineRestore) error {
			if r.Status.DefinitionDownload == "" {
				return errors.New("not planned")
			}
			return nil
		})
		w.readBack(*r.Status.Location, r.Status.DefinitionDownload, velerov2.PhaseFailed, "it is damaged", nil)
		for _, v := range r.Status.VolumeRestores {
			d := &velerov2.DataDownload{ObjectMeta: metav1.ObjectMeta{
				Namespace: r.Status.Location.Namespace,
				Name:      v.DataDownload,
			}}
			w.downloaded(wait(w, d, exists), velerov2.PhaseCompleted, "")
		}
	}
	r := w.newRestore(b, halt)
	fail(r)
	w.complete(r)

	w.must(w.admin.Delete(w.Context(), &corev1.Secret{ObjectMeta: w.meta("pull")}))
	again := w.newRestore(b, halt)
	again.Name, again.Spec.Target.Name = "again", "other"
	fail(again)
	w.restoreSays(again, says(harvesterv1.ConditionProgressing, corev1.ConditionFalse, harvesterv1.ReasonError,
		"it is damaged. The machine refers to Secret pull in namespace "+w.ns+": create these, and restore again"))
	w.must(w.admin.Delete(w.Context(), again))
	w.gone(again)
}
