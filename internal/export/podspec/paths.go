package podspec

import "path"

// Paths that the pod serves over HTTPS. Volumes are named as in Config.
const (
	// ReadinessPath answers 200 when the pod can serve, and 503 until then. It needs no token.
	ReadinessPath = "/exportready"
	volumesPath   = "/volumes"
	backupsPath   = "/exports"
)

// RawPath returns the path of a volume's content.
func RawPath(volume string) string { return path.Join(volumesPath, volume, diskImage) }

// GzipPath returns the path of a volume's content, compressed with gzip.
func GzipPath(volume string) string { return path.Join(volumesPath, volume, diskImage+".gz") }

// DataPath returns the path of the content of a backup's volume.
func DataPath(volume string) string { return path.Join(backupsPath, volume, "data") }

// MapPath returns the path of the regions of a backup's volume.
func MapPath(volume string) string { return path.Join(backupsPath, volume, "map") }

// ClaimDirectory returns where the pod mounts a Filesystem claim.
func ClaimDirectory(claim string) string { return path.Join(volumesDirectory, claim) }

// ClaimFile returns the path of the disk on a Filesystem claim.
func ClaimFile(claim string) string { return path.Join(ClaimDirectory(claim), diskImage) }

// ClaimDevice returns the path of the device of a Block claim.
func ClaimDevice(claim string) string { return path.Join(devicesDirectory, claim) }
