package expose

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
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
	return i.findImageVolume(ctx, imageVolume{
		namespace: target.Namespace, claim: target.PVC, owner: metav1.GetControllerOfNoCopy(download), kind: "BackingImage",
		isHandle: names.IsSource, what: "the source of the image that the DataDownload is of",
		advice: "create an image with sourceType " + string(longhornv1.SourceRestore) + " instead of a DataDownload",
	})
}

// imageVolume is the volume of an image that somebody asks for.
type imageVolume struct {
	// namespace and claim name its claim.
	namespace, claim string
	// owner owns the object that asks for it, and must be of this kind.
	owner *metav1.OwnerReference
	kind  string
	// isHandle says whether a handle, which is the claim's name, is that of such a volume.
	isHandle func(string) bool
	// what names the volume in messages, and advice says what to do instead.
	what, advice string
}

// findImageVolume returns a volume of the store that belongs to an image, with its claim, or what it waits for.
func (a Access) findImageVolume(ctx context.Context, want imageVolume) (Exposure, error) {
	if want.namespace != a.Namespace {
		return Exposure{}, refuse("PersistentVolumeClaim %s/%s is not %s, which is in namespace %s", want.namespace,
			want.claim, want.what, a.Namespace)
	}
	claim, err := a.findClaim(ctx, want.namespace, want.claim)
	switch {
	case err != nil:
		return Exposure{}, err
	case claim == nil:
		return Exposure{Waiting: "PersistentVolumeClaim " + want.namespace + "/" + want.claim + " to be created"}, nil
	case !want.isClaim(claim):
		return Exposure{}, refuse("%s is not %s: %s", describe(claim), want.what, want.advice)
	case claim.DeletionTimestamp != nil:
		return Exposure{}, refuse("%s was deleted while it was needed: try again", describe(claim))
	}
	volume, err := a.findVolume(ctx, claim.Spec.VolumeName)
	switch {
	case err != nil:
		return Exposure{}, err
	case claim.Status.Phase != corev1.ClaimBound || volume == nil || !isVolumeOf(volume, claim):
		return Exposure{
			Waiting: withDetail(describe(claim)+" to be bound", diagnosis.LastWarning(ctx, a.Live, claim)),
		}, nil
	case !isStoreVolume(volume, claim.Name):
		return Exposure{}, refuse("%s is bound to %s, which is not %s: delete the claim", describe(claim), describe(volume),
			want.what)
	}
	return Exposure{Volume: &Volume{
		Claim: claim.Name, VolumeMode: corev1.PersistentVolumeBlock,
		Bytes: claim.Spec.Resources.Requests.Storage().Value(), NodeAffinity: nodeAffinity(volume),
	}}, nil
}

// isClaim says whether a claim is that of the volume, by its owner and its name.
func (w *imageVolume) isClaim(claim *corev1.PersistentVolumeClaim) bool {
	owner := metav1.GetControllerOfNoCopy(claim)
	if owner == nil || w.owner == nil || owner.UID != w.owner.UID || !w.isHandle(claim.Name) {
		return false
	}
	version, err := schema.ParseGroupVersion(w.owner.APIVersion)
	return err == nil && version.Group == longhornv1.GroupVersion.Group && w.owner.Kind == w.kind &&
		ptr.Deref(claim.Spec.VolumeMode, "") == corev1.PersistentVolumeBlock
}

// isStoreVolume says whether a volume is the store's with a handle.
func isStoreVolume(volume *corev1.PersistentVolume, handle string) bool {
	csi := volume.Spec.CSI
	return csi != nil && csi.Driver == names.Driver && csi.VolumeHandle == handle
}

// Finish has nothing to do: the image has what was written.
func (*Images) Finish(context.Context, *velerov2.DataDownload) (Progress, error) {
	return Progress{Done: true}, nil
}

// Dispose has nothing to do: nothing was made.
func (*Images) Dispose(context.Context, *velerov2.DataDownload) (Progress, error) {
	return Progress{Done: true}, nil
}

// StoredImages finds images for DataUploads: block volumes that the BackupBackingImage which owns the DataUpload has
// made of its image, with their claims. An image never changes, so no snapshot is needed. Like Images, it makes and
// removes nothing.
type StoredImages struct{ Access }

// Expose returns the volume that has the image, or what it waits for.
func (i *StoredImages) Expose(ctx context.Context, upload *velerov2.DataUpload) (Exposure, error) {
	bytes, err := datamove.ReadDiskBytes(upload.Spec.DataMoverConfig)
	if err != nil {
		return Exposure{}, refuse("%s", err)
	}
	checksum, err := datamove.ReadDiskChecksum(upload.Spec.DataMoverConfig)
	if err != nil {
		return Exposure{}, refuse("%s", err)
	}
	e, err := i.findImageVolume(ctx, imageVolume{
		namespace: upload.Spec.SourceNamespace, claim: upload.Spec.SourcePVC, owner: metav1.GetControllerOfNoCopy(upload),
		kind: "BackupBackingImage", isHandle: names.IsReader, what: "the image that the DataUpload is of",
		advice: "create a BackupBackingImage instead of a DataUpload",
	})
	if e.Volume != nil {
		e.Volume.ReadOnly, e.Volume.DiskBytes, e.Volume.DiskChecksum = true, bytes, checksum
	}
	return e, err
}

// Finish has nothing to do: the repository has what was read.
func (*StoredImages) Finish(context.Context, *velerov2.DataUpload) (Progress, error) {
	return Progress{Done: true}, nil
}

// Dispose has nothing to do: nothing was made.
func (*StoredImages) Dispose(context.Context, *velerov2.DataUpload) (Progress, error) {
	return Progress{Done: true}, nil
}
