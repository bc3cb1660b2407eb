package expose

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/diagnosis"
	"github.com/varvebackup/varve/internal/store/names"
)

// Images finds the sources of images for DataDownloads: block volumes that the BackingImage which owns the DataDownload
// has made for it, with their claims. It makes nothing, hands nothing over, and removes nothing: the image's controller
// does that when the DataDownload is gone.
//
// What such a DataDownload names is overwritten where it is. So it must be the source of its own image and nothing
// else, such as a claim that has a repository.
type Images struct{ Access }

// Expose returns the source of the image, or what it waits for.
func (i *Images) Expose(ctx context.Context, download *velerov2.DataDownload) (Exposure, error) {
	target := download.Spec.TargetVolume
	if target.Namespace != i.Namespace {
		return Exposure{}, refuse("spec.targetVolume.namespace %s: images are made in namespace %s", target.Namespace,
			i.Namespace)
	}
	claim, err := i.findClaim(ctx, target.Namespace, target.PVC)
	switch {
	case err != nil:
		return Exposure{}, err
	case claim == nil:
		return Exposure{Waiting: "PersistentVolumeClaim " + target.Namespace + "/" + target.PVC + " to be created"}, nil
	case !isSourceClaim(claim, metav1.GetControllerOfNoCopy(download)):
		return Exposure{}, refuse("%s is not the source of the image that the DataDownload is of: create an image with "+
			"sourceType %s instead of a DataDownload", describe(claim), longhornv1.SourceRestore)
	case claim.DeletionTimestamp != nil:
		return Exposure{}, refuse("%s was deleted while it was needed: try again", describe(claim))
	}
	volume, err := i.findVolume(ctx, claim.Spec.VolumeName)
	switch {
	case err != nil:
		return Exposure{}, err
	case claim.Status.Phase != corev1.ClaimBound || volume == nil || !isVolumeOf(volume, claim):
		return Exposure{
			Waiting: withDetail(describe(claim)+" to be bound", diagnosis.LastWarning(ctx, i.Live, claim)),
		}, nil
	case !isSourceVolume(volume, claim.Name):
		return Exposure{}, refuse("%s is bound to %s, which is not the source of an image: delete the claim", describe(claim),
			describe(volume))
	}
	return Exposure{Volume: &Volume{
		Claim: claim.Name, VolumeMode: corev1.PersistentVolumeBlock,
		Bytes: claim.Spec.Resources.Requests.Storage().Value(), NodeAffinity: nodeAffinity(volume),
	}}, nil
}

// isSourceClaim says whether a claim is the source of the image that owns a DataDownload.
func isSourceClaim(claim *corev1.PersistentVolumeClaim, image *metav1.OwnerReference) bool {
	owner := metav1.GetControllerOfNoCopy(claim)
	if owner == nil || image == nil || owner.UID != image.UID || !names.IsSource(claim.Name) {
		return false
	}
	version, err := schema.ParseGroupVersion(image.APIVersion)
	return err == nil && version.Group == longhornv1.GroupVersion.Group && image.Kind == "BackingImage" &&
		ptr.Deref(claim.Spec.VolumeMode, "") == corev1.PersistentVolumeBlock
}

// isSourceVolume says whether a volume is the source of an image whose claim has a name.
func isSourceVolume(volume *corev1.PersistentVolume, claim string) bool {
	csi := volume.Spec.CSI
	return csi != nil && csi.Driver == names.Driver && csi.VolumeHandle == claim
}

// Finish has nothing to do: the image has what was written.
func (*Images) Finish(context.Context, *velerov2.DataDownload) (Progress, error) {
	return Progress{Done: true}, nil
}

// Dispose has nothing to do: nothing was made.
func (*Images) Dispose(context.Context, *velerov2.DataDownload) (Progress, error) {
	return Progress{Done: true}, nil
}
