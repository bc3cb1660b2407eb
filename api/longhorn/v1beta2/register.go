package v1beta2

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of every kind in this package.
var GroupVersion = schema.GroupVersion{Group: "longhorn.io", Version: "v1beta2"}

// AddToScheme registers the kinds of this package.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &BackingImage{}, &BackingImageList{}, &Node{}, &NodeList{}, &InstanceManager{},
		&InstanceManagerList{}, &BackupBackingImage{}, &BackupBackingImageList{}, &Volume{}, &VolumeList{}, &Replica{},
		&ReplicaList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
