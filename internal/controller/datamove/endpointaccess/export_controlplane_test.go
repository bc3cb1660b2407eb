//go:build controlplane

package endpointaccess

import (
	"errors"
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/test/controlplane"
)

// givesExportSecret: the pod gets the token of the export and the definition of the machine, and is told when the export is
// gone.
func givesExportSecret(w *world) {
	const uid = "7f2ad3c4-0b1e-4c55-9e0f-2d6a1b3c4d5e"
	export := &exportv1.VirtualMachineExport{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "web-disks"},
		Spec: exportv1.VirtualMachineExportSpec{Source: corev1.TypedLocalObjectReference{
			APIGroup: ptr.To(kubevirtv1.GroupVersion.Group), Kind: exportv1.SourceMachine, Name: "web",
		}},
	}
	w.create(export)
	controlplane.Update(w.T, cluster.Client(w.T, controlplane.Controller), export, true,
		func(e *exportv1.VirtualMachineExport) {
			e.Status.TokenSecretRef = ptr.To(w.token.Name)
			e.Status.Links = &exportv1.VirtualMachineExportLinks{Internal: &exportv1.VirtualMachineExportLink{Cert: "authority 1"}}
		})
	disk := datamove.ExportDisk{Export: export.Name, Group: "monday", Definition: uid}
	o := w.upload("stopped", func(o *velerov2.DataUpload) {
		o.Annotations[datamove.AnnotationExposed] = datamove.ReadBackup{Backup: export.UID}.Encode()
		o.Spec.DataMoverConfig = disk.Config()
	})
	pod := w.pod(o, nil)
	becomes := func(want map[string]string) {
		w.Helper()
		controlplane.Eventually(w, func() error {
			s, err := w.secret(o)
			if err != nil {
				return err
			}
			got := map[string]string{}
			for key, value := range s.Data {
				got[key] = string(value)
			}
			if !maps.Equal(got, want) || !metav1.IsControlledBy(s, pod) {
				return fmt.Errorf("the Secret has %q", got)
			}
			return nil
		})
	}
	// Without the definition that it is to store, no pod starts to read.
	controlplane.Eventually(w, func() error {
		var list eventsv1.EventList
		if err := w.admin.List(w.Context(), &list, client.InNamespace(controlplane.SystemNamespace)); err != nil {
			return err
		}
		for i := range list.Items {
			if e := &list.Items[i]; e.Regarding.UID == pod.UID &&
				strings.Contains(e.Note, "with the definition of the machine does not exist") {
				return nil
			}
		}
		return errors.New("no event says that the definition is missing")
	})
	if s, err := w.secret(o); err == nil {
		w.Errorf("a Secret without the definition: %v", s.Data)
	}
	definition := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.varve, Name: datamove.DefinitionSecret(uid)},
		Type:       datamove.DefinitionSecretType,
		Data:       map[string][]byte{datamove.DefinitionKey: []byte("of the machine")},
	}
	w.create(definition)
	w.touch(o)
	want := map[string]string{"token": "first", "ca.crt": "authority 1", "ended": "", "definition": "of the machine"}
	becomes(want)
	if err := w.admin.Delete(w.Context(), export); err != nil {
		w.Fatal(err)
	}
	w.touch(o)
	want["ended"] = "VirtualMachineExport " + w.ns + "/web-disks was deleted"
	becomes(want)
}
