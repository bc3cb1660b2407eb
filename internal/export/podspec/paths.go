package podspec

import (
	"path"

	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
)

// Paths that the pod serves over HTTPS. Volumes are named as in Config.
const (
	// ReadinessPath answers 200 when the pod can serve, and 503 until then. It needs no token.
	ReadinessPath = "/exportready"
	volumesPath   = "/volumes"
	backupsPath   = "/exports"
	manifestsPath = "/manifests"
)

// Link is one of the two ways to an export. Manifests have the addresses of the way on which they are asked for.
type Link string

const (
	// InternalLink is the way through the export's Service.
	InternalLink Link = "internal"
	// ExternalLink is the way through the export proxy.
	ExternalLink Link = "external"
)

// AllManifestsPath returns the path of the machine's manifest with all that it needs but the token's Secret.
func AllManifestsPath(link Link) string { return path.Join("/", string(link), manifestsPath, "all") }

// SecretManifestPath returns the path of the manifest of the Secret with the token as a header.
func SecretManifestPath(link Link) string {
	return path.Join("/", string(link), manifestsPath, "secret")
}

// ManifestsKey returns the key in ManifestsSecret, and the file's name in ManifestsDirectory, of what AllManifestsPath
// serves. It is empty if there is no such link.
func ManifestsKey(link Link) string { return string(link) + ".json" }

// RawPath returns the path of a volume's content.
func RawPath(volume string) string { return path.Join(volumesPath, volume, diskImage) }

// GzipPath returns the path of a volume's content, compressed with gzip.
func GzipPath(volume string) string { return path.Join(volumesPath, volume, diskImage+".gz") }

// DataPath returns the path of the content of a backup's volume.
func DataPath(volume string) string { return path.Join(backupsPath, volume, "data") }

// MapPath returns the path of the regions of a backup's volume.
func MapPath(volume string) string { return path.Join(backupsPath, volume, "map") }

// ProxyResource stands between the namespace and the export's name in every ProxyPath.
const ProxyResource = "virtualmachineexports"

// ProxyPrefix is the beginning of every ProxyPath.
var ProxyPrefix = "/api/" + exportv1.GroupVersion.String() + "/namespaces/"

// ProxyPath returns the path below which the export proxy serves an export, as upstream's does: ProxyPrefix, the namespace,
// a slash, ProxyResource, a slash and the export's name.
func ProxyPath(namespace, export string) string {
	return ProxyPrefix + path.Join(namespace, ProxyResource, export)
}

// ClaimDirectory returns where the pod mounts a Filesystem claim.
func ClaimDirectory(claim string) string { return path.Join(volumesDirectory, claim) }

// ClaimFile returns the path of the disk on a Filesystem claim.
func ClaimFile(claim string) string { return path.Join(ClaimDirectory(claim), diskImage) }

// ClaimDevice returns the path of the device of a Block claim.
func ClaimDevice(claim string) string { return path.Join(devicesDirectory, claim) }
