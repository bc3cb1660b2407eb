package expose

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	"github.com/varvebackup/varve/internal/datamove"
)

// KubeVirt exports a snapshot by claims that it makes for the export. Each is listed under the name of the machine's
// claim, and has its own name in the address.
func TestExportedFile_ofASnapshot(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		kind, path, fullReason string
	}{
		"a snapshot": {
			exportv1.SourceSnapshot, "/volumes/web-disks-data/disk.img", datamove.FullNotTracked,
		},
		"a snapshot at the machine's claim":  {exportv1.SourceSnapshot, "/volumes/data/disk.img", ""},
		"a machine":                          {exportv1.SourceMachine, "/volumes/data/disk.img", ""},
		"a machine at the claim of another":  {exportv1.SourceMachine, "/volumes/web-disks-data/disk.img", ""},
		"a snapshot at the claim of another": {exportv1.SourceSnapshot, "/volumes/web-disks-root/disk.img", ""},
	} {
		address := "https://virt-export-web-disks.app.svc" + c.path
		o := &exportv1.VirtualMachineExport{
			ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "web-disks", UID: "e"},
			Spec:       exportv1.VirtualMachineExportSpec{Source: corev1.TypedLocalObjectReference{Kind: c.kind, Name: "web"}},
		}
		o.Status.Links = &exportv1.VirtualMachineExportLinks{Internal: &exportv1.VirtualMachineExportLink{
			Volumes: []exportv1.VirtualMachineExportVolume{{
				Name:    "data",
				Formats: []exportv1.VirtualMachineExportVolumeFormat{{Format: exportv1.FormatRaw, URL: address}},
			}},
		}}
		from, err := exportedFile("export", o, "data")
		served := c.fullReason != "" || name == "a machine"
		switch {
		case served != (err == nil):
			t.Errorf("%s: %+v, %v", name, from, err)
		case served && (from.FullReason != c.fullReason || from.Data != address || from.Volume != "data"):
			t.Errorf("%s: %+v", name, from)
		}
	}
}
