package changedblocktracking

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/varvebackup/varve/internal/layout"
)

func TestSharedClass_needsProof(t *testing.T) {
	t.Parallel()
	const many, once = corev1.ReadWriteMany, corev1.ReadWriteOnce
	const file, block = corev1.PersistentVolumeFilesystem, corev1.PersistentVolumeBlock
	disk := func(class string, mode corev1.PersistentVolumeMode,
		access corev1.PersistentVolumeAccessMode,
	) *corev1.PersistentVolumeClaim {
		c := &corev1.PersistentVolumeClaim{}
		c.Spec.StorageClassName, c.Spec.VolumeMode, c.Spec.AccessModes = &class, &mode, []corev1.PersistentVolumeAccessMode{access}
		return c
	}
	classes := []storagev1.StorageClass{
		{ObjectMeta: metav1.ObjectMeta{Name: "rbd"}},
		{ObjectMeta: metav1.ObjectMeta{
			Name:        "box",
			Annotations: map[string]string{layout.AnnotationSharedFilesystems: "true"},
		}},
	}
	for name, c := range map[string]struct {
		disks []*corev1.PersistentVolumeClaim
		want  string
	}{
		"no disk":              {nil, ""},
		"one node":             {[]*corev1.PersistentVolumeClaim{disk("nfs", file, once)}, ""},
		"a shared file system": {[]*corev1.PersistentVolumeClaim{disk("nfs", file, many)}, "nfs"},
		"one of two is for one node": {
			[]*corev1.PersistentVolumeClaim{disk("nfs", file, many), disk("nfs", file, once)}, "",
		},
		"shared devices": {[]*corev1.PersistentVolumeClaim{disk("rbd", block, many)}, ""},
		"shared devices and a file system": {
			[]*corev1.PersistentVolumeClaim{disk("rbd", block, many), disk("nfs", file, many)}, "nfs",
		},
		"shared devices of a class that says so": {[]*corev1.PersistentVolumeClaim{disk("box", block, many)}, "box"},
		"no class":                               {[]*corev1.PersistentVolumeClaim{disk("", file, many)}, ""},
	} {
		if got := ptr.Deref(sharedClass(c.disks, classes), ""); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
