package backup

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
)

func TestChooseVia_onlyServicesLeadToThePod(t *testing.T) {
	t.Parallel()
	const inCluster, proxy = "https://virt-export-web.shop.svc/exports/root/data", "https://exports.example.com/api/exports/root/data"
	for _, c := range []struct{ url, asked, want string }{
		{inCluster, viaDirect, viaDirect},
		{inCluster, viaForward, viaForward},
		{proxy, viaAuto, viaDirect},
		{proxy, viaDirect, viaDirect},
		{proxy, viaForward, ""},
	} {
		b := &backupv1.VirtualMachineBackup{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "monday"}}
		b.Status.ExportName = "web"
		b.Status.IncludedVolumes = []backupv1.IncludedVolume{{Name: "root", DataEndpoint: c.url}}
		got, err := chooseVia(t.Context(), b, c.asked)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s with %s: %q, %v", c.url, c.asked, got, err)
		}
	}
}
