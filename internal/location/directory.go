package location

import (
	"maps"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
)

// addClaim reads a location that is a directory of a claim in Varve's namespace.
func (p *Place) addClaim(l *velerov1.BackupStorageLocation) error {
	if err := checkDirectory(l, p.Prefix); err != nil {
		return err
	}
	name := l.Spec.ObjectStorage.Bucket
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return refuse("spec.objectStorage.bucket", "%q is not the name of a claim: %s", name, strings.Join(problems, "; "))
	}
	p.Volume = &corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name, ReadOnly: p.ReadOnly}}
	return nil
}

// addNFS reads a location that is a directory of an NFS export.
func (p *Place) addNFS(l *velerov1.BackupStorageLocation) error {
	if err := checkDirectory(l, p.Prefix, "server", "path"); err != nil {
		return err
	}
	server, export := l.Spec.Config["server"], l.Spec.Config["path"]
	switch {
	case server == "" || strings.ContainsAny(server, "/ \t\n"):
		return refuse("spec.config.server", "%q is not the name or address of an NFS server", server)
	case !path.IsAbs(export) || path.Clean(export) != export:
		return refuse("spec.config.path", "%q is not the absolute path of an export", export)
	}
	p.Volume = &corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: server, Path: export, ReadOnly: p.ReadOnly}}
	return nil
}

// checkDirectory refuses what a directory cannot have.
func checkDirectory(l *velerov1.BackupStorageLocation, prefix string, keys ...string) error {
	for _, key := range slices.Sorted(maps.Keys(l.Spec.Config)) {
		if !slices.Contains(keys, key) {
			return refuse("spec.config."+key, "unknown key of provider %s", l.Spec.Provider)
		}
	}
	switch o := l.Spec.ObjectStorage; {
	case l.Spec.Credential != nil:
		return refuse("spec.credential", "provider %s has none", l.Spec.Provider)
	case len(o.CACert) > 0 || o.CACertRef != nil:
		return refuse("spec.objectStorage.caCert", "provider %s has none", l.Spec.Provider)
	case l.Annotations[AnnotationLockMode] != "" || l.Annotations[AnnotationLockPeriod] != "":
		return refuse("metadata.annotations["+AnnotationLockMode+"]", "a directory has no object lock")
	case prefix != "" && (path.Clean(prefix) != prefix || slices.Contains(strings.Split(prefix, "/"), "..")):
		return refuse("spec.objectStorage.prefix", "%q is not a relative path", prefix)
	}
	return nil
}
