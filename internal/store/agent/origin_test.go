package agent

import (
	"testing"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/store/disk"
)

// Volumes in which images are made, and from which they are read, are not volumes of users.
func TestFindOrigin_isNoVolumeOfAnImage(t *testing.T) {
	t.Parallel()
	s := &diskState{objects: []disk.Object{
		{Name: "source/u1", Kind: disk.KindHead}, {Name: "backup/b1", Kind: disk.KindHead},
	}}
	for _, volume := range []longhornv1.ParameterValue{"source-u1", "image-b1"} {
		image := &longhornv1.BackingImage{Spec: longhornv1.BackingImageSpec{
			SourceType:       longhornv1.SourceExport,
			SourceParameters: map[string]longhornv1.ParameterValue{longhornv1.ParameterVolumeName: volume},
		}}
		if o, err := findOrigin(t.Context(), s, image, nil); err != nil || o.object != nil {
			t.Errorf("%s: %+v, %v", volume, o, err)
		}
	}
}
