package datamove

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"github.com/varvebackup/varve/internal/layout"
)

// AnnotationStorage is on a BackupRepository whose location only pods can use: the Storage that they need, as Encode writes it.
const AnnotationStorage = layout.Prefix + "storage"

// LabelStorage is on every pod that mounts a Storage of one node. Its value is the Storage's Label.
const LabelStorage = layout.Prefix + "storage"

// IdentityDirectory is where a pod has the token that it shows for a role, and IdentityToken the token's file in it.
const (
	IdentityDirectory = "/run/varve/identity"
	IdentityToken     = "token"
)

// identitySeconds is how long such a token is valid. The kubelet renews it.
const identitySeconds = 3600

// Storage is what a pod must have to use a location: the volume of one that is a directory, which is a claim in Varve's namespace or an NFS
// export; or an identity, for a bucket whose keys are those of a role.
type Storage struct {
	Volume corev1.VolumeSource `json:"volume"`
	// OneNode: the pods of one node alone can use it at a time.
	OneNode bool `json:"oneNode,omitempty"`
	// Identity is nil for a directory.
	Identity *Identity `json:"identity,omitempty"`
}

// Identity makes a pod be the account ServiceAccount.
type Identity struct {
	// Audience is that of the token at IdentityDirectory; "": there is none, and the pod's environment has a role.
	Audience string `json:"audience,omitempty"`
}

// IsDirectory says whether there is a volume.
func (s Storage) IsDirectory() bool {
	return s.Volume.PersistentVolumeClaim != nil || s.Volume.NFS != nil
}

// Encode returns the storage as AnnotationStorage has it.
func (s Storage) Encode() string {
	text, err := json.Marshal(s)
	if err != nil {
		panic(err) // strings and booleans
	}
	return string(text)
}

// DecodeStorage reads AnnotationStorage. It takes a claim, an NFS export or an identity, and nothing else: a volume of another kind could be
// a directory of the node, and a token for another audience could be used with the API server.
func DecodeStorage(text string) (Storage, error) {
	var s Storage
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return Storage{}, fmt.Errorf("decode %s: %w", AnnotationStorage, err)
	}
	only := s
	only.Volume = corev1.VolumeSource{PersistentVolumeClaim: s.Volume.PersistentVolumeClaim, NFS: s.Volume.NFS}
	parts := 0
	for _, is := range []bool{s.Volume.PersistentVolumeClaim != nil, s.Volume.NFS != nil, s.Identity != nil} {
		if is {
			parts++
		}
	}
	if only.Encode() != s.Encode() || parts != 1 {
		return Storage{}, errors.New("decode " + AnnotationStorage + ": neither a claim nor an NFS export")
	}
	if s.Identity != nil && s.Identity.Audience != "" && !IsTokenAudience(s.Identity.Audience) {
		return Storage{}, errors.New("decode " + AnnotationStorage + ": not the audience of an STS")
	}
	return s, nil
}

// IsTokenAudience says whether a pod may have a token for an audience. It must begin with "sts.", so that the API server never takes such a
// token, which an STS gets to see.
func IsTokenAudience(audience string) bool {
	return strings.HasPrefix(audience, "sts.") && len(validation.IsDNS1123Subdomain(audience)) == 0
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

// Mount gives a pod the storage at StorageDirectory, in its first container, or the identity. Pods that share a storage of one node run on
// one node: the scheduler sees to it.
func (s Storage) Mount(meta *metav1.ObjectMeta, spec *corev1.PodSpec) {
	if s.Identity != nil {
		s.Identity.mount(spec)
		return
	}
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

// mount makes a pod be the account, without a token for the API server. One that the pod has already stays.
func (i Identity) mount(spec *corev1.PodSpec) {
	spec.ServiceAccountName = ServiceAccount
	if i.Audience == "" {
		return
	}
	const volume = "identity"
	spec.Volumes = append(spec.Volumes, corev1.Volume{Name: volume, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		DefaultMode: ptr.To[int32](0o400),
		Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
			Path: IdentityToken, Audience: i.Audience, ExpirationSeconds: ptr.To[int64](identitySeconds),
		}}},
	}}})
	c := &spec.Containers[0]
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: volume, MountPath: IdentityDirectory, ReadOnly: true})
}
