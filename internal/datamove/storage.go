package datamove

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/varvebackup/varve/internal/layout"
)

// AnnotationStorage is on a BackupRepository whose location is a directory: the Storage that its pods mount, as Encode writes it.
const AnnotationStorage = layout.Prefix + "storage"

// LabelStorage is on every pod that mounts a Storage of one node. Its value is the Storage's Label.
const LabelStorage = layout.Prefix + "storage"

// Storage is the volume of a location that is a directory: a claim in Varve's namespace, or an NFS export.
type Storage struct {
	Volume corev1.VolumeSource `json:"volume"`
	// OneNode: the pods of one node alone can use it at a time.
	OneNode bool `json:"oneNode,omitempty"`
}

// Encode returns the storage as AnnotationStorage has it.
func (s Storage) Encode() string {
	text, err := json.Marshal(s)
	if err != nil {
		panic(err) // strings and booleans
	}
	return string(text)
}

// DecodeStorage reads AnnotationStorage. It takes a claim or an NFS export and nothing else: a volume of another kind could be a
// directory of the node.
func DecodeStorage(text string) (Storage, error) {
	var s Storage
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return Storage{}, fmt.Errorf("decode %s: %w", AnnotationStorage, err)
	}
	only := s
	only.Volume = corev1.VolumeSource{PersistentVolumeClaim: s.Volume.PersistentVolumeClaim, NFS: s.Volume.NFS}
	if only.Encode() != s.Encode() || (s.Volume.PersistentVolumeClaim != nil) == (s.Volume.NFS != nil) {
		return Storage{}, errors.New("decode " + AnnotationStorage + ": neither a claim nor an NFS export")
	}
	return s, nil
}

// StorageOf returns the storage that pods mount for a repository, if its location is a directory; otherwise nil.
func StorageOf(repository metav1.Object) (*Storage, error) {
	text := repository.GetAnnotations()[AnnotationStorage]
	if text == "" {
		return nil, nil //nolint:nilnil // documented
	}
	s, err := DecodeStorage(text)
	if err != nil {
		return nil, err
	}
	return &s, nil
}

// Label is the value of LabelStorage of the pods that mount the storage.
func (s Storage) Label() string {
	sum := sha256.Sum256([]byte(s.Encode()))
	if c := s.Volume.PersistentVolumeClaim; c != nil {
		sum = sha256.Sum256([]byte(c.ClaimName)) // read-only or not
	}
	return hex.EncodeToString(sum[:10])
}

// ReadOnly says whether nothing can be written there.
func (s Storage) ReadOnly() bool {
	if s.Volume.PersistentVolumeClaim != nil {
		return s.Volume.PersistentVolumeClaim.ReadOnly
	}
	return s.Volume.NFS != nil && s.Volume.NFS.ReadOnly
}

// ClaimStorage returns the storage that a location's claim is, as a volume of pods. It fails with what the claim must be instead; claim is
// nil if there is none.
func ClaimStorage(volume corev1.VolumeSource, claim *corev1.PersistentVolumeClaim) (Storage, error) {
	source := volume.PersistentVolumeClaim
	if claim == nil {
		return Storage{}, fmt.Errorf("there is no claim %s/%s: create it", layout.Namespace, source.ClaimName)
	}
	name := "claim " + claim.Namespace + "/" + claim.Name
	modes := claim.Status.AccessModes
	if len(modes) == 0 {
		modes = claim.Spec.AccessModes
	}
	has := func(mode corev1.PersistentVolumeAccessMode) bool { return slices.Contains(modes, mode) }
	many := has(corev1.ReadWriteMany) || source.ReadOnly && has(corev1.ReadOnlyMany)
	switch {
	case claim.DeletionTimestamp != nil:
		return Storage{}, errors.New(name + " is being deleted")
	case claim.Spec.VolumeMode != nil && *claim.Spec.VolumeMode == corev1.PersistentVolumeBlock:
		return Storage{}, errors.New(name + " has volumeMode Block: use one with volumeMode Filesystem")
	case claim.Status.Phase == corev1.ClaimLost:
		return Storage{}, errors.New(name + " has lost its volume")
	case !many && !has(corev1.ReadWriteOnce) && has(corev1.ReadWriteOncePod):
		return Storage{}, errors.New(name + " is ReadWriteOncePod: repositories need several pods at a time; use ReadWriteMany, or ReadWriteOnce for one node")
	case !many && !has(corev1.ReadWriteOnce):
		return Storage{}, errors.New(name + " cannot be written: set spec.accessMode to ReadOnly, or use one that is ReadWriteMany")
	}
	return Storage{Volume: volume, OneNode: !many}, nil
}

// Remark says what users should know about the storage; "" if nothing.
func (s Storage) Remark() string {
	if !s.OneNode || s.Volume.PersistentVolumeClaim == nil {
		return ""
	}
	return "claim " + s.Volume.PersistentVolumeClaim.ClaimName + " is ReadWriteOnce: only one node can use it at a time, so all data is moved on one node"
}

// Mount gives a pod the storage at StorageDirectory, in its first container. Pods that share a storage of one node run on one node: the
// scheduler sees to it.
func (s Storage) Mount(meta *metav1.ObjectMeta, spec *corev1.PodSpec) {
	const volume = "storage"
	spec.Volumes = append(spec.Volumes, corev1.Volume{Name: volume, VolumeSource: *s.Volume.DeepCopy()})
	c := &spec.Containers[0]
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: volume, MountPath: StorageDirectory, ReadOnly: s.ReadOnly()})
	if !s.OneNode {
		return
	}
	metav1.SetMetaDataLabel(meta, LabelStorage, s.Label())
	if spec.Affinity == nil {
		spec.Affinity = &corev1.Affinity{}
	}
	spec.Affinity.PodAffinity = &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
		TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{LabelStorage: s.Label()}},
	}}}
}
