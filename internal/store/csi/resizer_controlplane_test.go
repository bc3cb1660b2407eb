//go:build controlplane

package csi_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/store/names"
	"github.com/varvebackup/varve/test/controlplane"
)

// checkResizer checks that volumes grow with their claims, with no more rights than deploy/store grants.
func checkResizer(t *testing.T, admin client.Client, files *memory) {
	t.Helper()
	claim := makeClaim(t, admin, "growing", readyImage, func(class *storagev1.StorageClass) {
		class.AllowVolumeExpansion = ptr.To(true)
	})
	handle := bindClaim(t, admin, claim)
	controlplane.Update(t, admin, claim, false, func(c *corev1.PersistentVolumeClaim) {
		c.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("8Mi")
	})
	waitForEvent(t, admin, claim, "the volume has 8Mi")
	pv, volume := &corev1.PersistentVolume{}, &longhornv1.Volume{}
	controlplane.Eventually(t, func() error {
		if err := admin.Get(t.Context(), client.ObjectKeyFromObject(claim), claim); err != nil {
			return err
		}
		want := corev1.PersistentVolumeClaimStatus{
			Phase: corev1.ClaimBound, AccessModes: claim.Spec.AccessModes, Capacity: claim.Spec.Resources.Requests,
			AllocatedResources: claim.Spec.Resources.Requests,
		}
		if diff := cmp.Diff(want, claim.Status); diff != "" {
			return fmt.Errorf("the claim's status (-want +got):\n%s", diff)
		}
		if err := admin.Get(t.Context(), client.ObjectKey{Name: handle}, pv); err != nil {
			return err
		}
		return admin.Get(t.Context(), client.ObjectKey{Namespace: controlplane.SystemNamespace, Name: handle}, volume)
	})
	head := files.find(names.Head(handle))
	size := pv.Spec.Capacity[corev1.ResourceStorage]
	if size.Value() != 8*mib || head.Bytes != 8*mib || volume.Spec.Size != 8*mib {
		t.Errorf("PersistentVolume has %s, head %d, Volume %d", size.String(), head.Bytes, volume.Spec.Size)
	}
	if image := volume.Spec.BackingImage; image != readyImage {
		t.Errorf("the volume's image is %q", image)
	}
	releaseVolume(t, admin, claim)
	wantNothing(t, admin, files, handle)
}
