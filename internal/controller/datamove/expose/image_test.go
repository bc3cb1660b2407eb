package expose

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/store/names"
)

// imageSource is the source of an image, and the DataDownload that writes to it.
type imageSource struct {
	download *velerov2.DataDownload
	claim    *corev1.PersistentVolumeClaim
	volume   *corev1.PersistentVolume
}

func newImageSource() *imageSource {
	owner := func() []metav1.OwnerReference {
		return []metav1.OwnerReference{{
			APIVersion: "longhorn.io/v1beta2", Kind: "BackingImage", Name: "golden", UID: "image", Controller: ptr.To(true),
		}}
	}
	s := &imageSource{
		download: &velerov2.DataDownload{ObjectMeta: metav1.ObjectMeta{
			Namespace: "varve", Name: "source-1", UID: "d", OwnerReferences: owner(),
		}},
		claim: &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: "source-1", UID: "c", OwnerReferences: owner()},
			Spec: corev1.PersistentVolumeClaimSpec{
				VolumeName: "source-1", VolumeMode: ptr.To(corev1.PersistentVolumeBlock),
				Resources: corev1.VolumeResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("8Ti")},
				},
			},
			Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
		},
		volume: &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "source-1"}},
	}
	s.download.Spec.TargetVolume = velerov2.TargetVolumeSpec{Namespace: "varve", PVC: "source-1"}
	s.download.Spec.DataMoverConfig = map[string]string{datamove.ConfigWrite: datamove.WriteImage}
	s.volume.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "varve", Name: "source-1", UID: "c"}
	s.volume.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: names.Driver, VolumeHandle: "source-1"}
	s.volume.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{}}
	return s
}

// The source of an image is written where it is, and nothing else ever is: neither the source of another image, nor any
// other claim in Varve's namespace.
func TestImages_expose(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		edit           func(*imageSource)
		waits, refuses string
	}{
		"the source": {edit: func(*imageSource) {}},
		"no claim": {
			edit: func(s *imageSource) { s.claim = nil }, waits: "PersistentVolumeClaim varve/source-1 to be created",
		},
		"a claim that is not bound": {
			edit:  func(s *imageSource) { s.claim.Status.Phase = corev1.ClaimPending },
			waits: "PersistentVolumeClaim varve/source-1 to be bound",
		},
		"no volume": {edit: func(s *imageSource) { s.volume = nil }, waits: "to be bound"},
		"a volume of another claim": {
			edit: func(s *imageSource) { s.volume.Spec.ClaimRef.UID = "other" }, waits: "to be bound",
		},
		"another namespace": {
			edit:    func(s *imageSource) { s.download.Spec.TargetVolume.Namespace = "app" },
			refuses: "PersistentVolumeClaim app/source-1 is not the source of the image",
		},
		"a claim of nobody": {
			edit: func(s *imageSource) { s.claim.OwnerReferences = nil }, refuses: "is not the source of the image",
		},
		"a DataDownload of nobody": {
			edit: func(s *imageSource) { s.download.OwnerReferences = nil }, refuses: "is not the source of the image",
		},
		"the source of another image": {
			edit: func(s *imageSource) { s.claim.OwnerReferences[0].UID = "other" }, refuses: "is not the source of the image",
		},
		"something else of the image": {
			edit: func(s *imageSource) {
				s.claim.Name, s.download.Spec.TargetVolume.PVC = "repository", "repository"
			},
			refuses: "is not the source of the image",
		},
		"an owner of another kind": {
			edit: func(s *imageSource) {
				s.download.OwnerReferences[0].Kind, s.claim.OwnerReferences[0].Kind = "ReplicaSet", "ReplicaSet"
			},
			refuses: "is not the source of the image",
		},
		"a file system": {
			edit: func(s *imageSource) {
				s.claim.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeFilesystem)
			},
			refuses: "is not the source of the image",
		},
		"a claim that is being deleted": {
			edit: func(s *imageSource) {
				s.claim.DeletionTimestamp, s.claim.Finalizers = ptr.To(metav1.Now()), []string{"kubernetes.io/pvc-protection"}
			},
			refuses: "was deleted while it was needed",
		},
		"a volume of another driver": {
			edit:    func(s *imageSource) { s.volume.Spec.CSI.Driver = "csi.example.com" },
			refuses: "which is not the source of the image",
		},
		"a volume with another handle": {
			edit:    func(s *imageSource) { s.volume.Spec.CSI.VolumeHandle = "pvc-1" },
			refuses: "which is not the source of the image",
		},
	} {
		s := newImageSource()
		c.edit(s)
		live := fake.NewClientBuilder().WithIndex(&corev1.Event{}, "involvedObject.uid", nil)
		if s.claim != nil {
			live = live.WithObjects(s.claim)
		}
		if s.volume != nil {
			live = live.WithObjects(s.volume)
		}
		images := &Images{Access: Access{Live: live.Build(), Namespace: "varve"}}
		e, err := images.Expose(t.Context(), s.download)
		switch {
		case c.refuses != "":
			if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), c.refuses) {
				t.Errorf("%s: %+v, %v, want a refusal that says %q", name, e, err, c.refuses)
			}
		case err != nil || !strings.Contains(e.Waiting, c.waits) || (e.Waiting == "") != (c.waits == ""):
			t.Errorf("%s: %+v, %v, want it to wait for %q", name, e, err, c.waits)
		case c.waits == "":
			want := &Volume{
				Claim: "source-1", VolumeMode: corev1.PersistentVolumeBlock, Bytes: 8 << 40,
				NodeAffinity: s.volume.Spec.NodeAffinity.Required,
			}
			if diff := cmp.Diff(want, e.Volume); diff != "" {
				t.Errorf("%s: %s", name, diff)
			}
		}
		// It has no writer: whatever there is, both leave it as it is.
		for step, do := range map[string]func() (Progress, error){
			"finish":  func() (Progress, error) { return images.Finish(t.Context(), s.download) },
			"dispose": func() (Progress, error) { return images.Dispose(t.Context(), s.download) },
		} {
			if p, err := do(); err != nil || !p.Done {
				t.Errorf("%s: %s: %+v, %v", name, step, p, err)
			}
		}
	}
}

// Only the volume that the backup of an image owns is read, and no more of it than the image has.
func TestStoredImages_expose(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		edit    func(*velerov2.DataUpload, *imageSource)
		refuses string
	}{
		"the image": {func(*velerov2.DataUpload, *imageSource) {}, ""},
		"no size": {
			func(u *velerov2.DataUpload, _ *imageSource) { u.Spec.DataMoverConfig = nil }, "is not a number of bytes",
		},
		"the source of an image": {
			func(u *velerov2.DataUpload, s *imageSource) { s.claim.Name, u.Spec.SourcePVC = "source-1", "source-1" },
			"is not the image that the DataUpload is of",
		},
		"that of an image": {
			func(u *velerov2.DataUpload, _ *imageSource) { u.OwnerReferences[0].Kind = "BackingImage" },
			"is not the image that the DataUpload is of",
		},
		"that of another backup": {
			func(_ *velerov2.DataUpload, s *imageSource) { s.claim.OwnerReferences[0].UID = "other" },
			"is not the image that the DataUpload is of",
		},
		"an image without a checksum": {
			func(u *velerov2.DataUpload, _ *imageSource) {
				delete(u.Spec.DataMoverConfig, datamove.ConfigDiskChecksum)
			},
			"diskChecksum",
		},
		"a volume of somebody's": {
			func(_ *velerov2.DataUpload, s *imageSource) { s.volume.Spec.CSI.VolumeHandle = "pvc-1" },
			"which is not the image that the DataUpload is of",
		},
	} {
		s := newImageSource()
		s.claim.Name, s.volume.Name, s.claim.Spec.VolumeName = "image-1", "image-1", "image-1"
		s.volume.Spec.CSI.VolumeHandle = "image-1"
		u := &velerov2.DataUpload{ObjectMeta: metav1.ObjectMeta{
			Namespace: "varve", Name: "image-1", OwnerReferences: s.download.OwnerReferences,
		}}
		u.OwnerReferences[0].Kind, s.claim.OwnerReferences[0].Kind = "BackupBackingImage", "BackupBackingImage"
		u.Spec.SourceNamespace, u.Spec.SourcePVC = "varve", "image-1"
		u.Spec.DataMoverConfig = map[string]string{
			datamove.ConfigDiskBytes: "1000001", datamove.ConfigDiskChecksum: strings.Repeat("ab", 64),
		}
		c.edit(u, s)
		live := fake.NewClientBuilder().WithObjects(s.claim, s.volume).Build()
		images := &StoredImages{Access: Access{Live: live, Namespace: "varve"}}
		e, err := images.Expose(t.Context(), u)
		switch {
		case c.refuses != "":
			if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), c.refuses) {
				t.Errorf("%s: %+v, %v, want a refusal that says %q", name, e, err, c.refuses)
			}
		case err != nil || e.Volume == nil || !e.Volume.ReadOnly || e.Volume.DiskBytes != 1_000_001 ||
			e.Volume.DiskChecksum != strings.Repeat("ab", 64) || e.Volume.Claim != "image-1":
			t.Errorf("%s: %+v, %v", name, e, err)
		}
		for step, do := range map[string]func() (Progress, error){
			"finish":  func() (Progress, error) { return images.Finish(t.Context(), u) },
			"dispose": func() (Progress, error) { return images.Dispose(t.Context(), u) },
		} {
			if p, err := do(); err != nil || !p.Done {
				t.Errorf("%s: %s: %+v, %v", name, step, p, err)
			}
		}
	}
}
