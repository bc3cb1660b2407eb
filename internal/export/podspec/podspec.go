// Package podspec is the contract between the controller of exports, which makes the export pod, and the program that
// runs in it, `varve export-server`. It says how objects are named, what the pod finds where, and which paths it serves.
//
// The pod has:
//
//   - its configuration, a Config in JSON, in the environment variable ConfigVariable. It does not change while the pod
//     exists.
//   - its certificate and key in CertificateFile and KeyFile. They are replaced while the pod runs, hours before the old
//     ones end: read them again at least once a minute.
//   - the token that clients must send in TokenFile. The Secret's owner may change it at any time: read it again for each
//     request, or at least every few seconds. An empty or missing token admits nobody.
//   - for a source of volumes, each disk at Volume.Path: a file if it is on a Filesystem claim, a block device if it is on
//     a Block claim. Both are read-only.
//   - for a machine, its manifests in ManifestsDirectory. They are replaced while the pod runs: read them again for each
//     request.
//   - for a backup, the tunnel's token in TunnelTokenFile. It is for the launcher alone.
//
// Everything else is read-only and empty, and there is no service account token. The pod runs as User and Group, which
// are not root.
//
// The pod listens on HTTPSPort, and for a backup on TunnelPort. ReadinessPath answers 200 over HTTPS, without a token, as
// long as the pod can really serve: for volumes every disk can be opened, for a backup the launcher's tunnel is up. The
// Service of a backup sends its clients also to a pod that is not ready, because the launcher dials the Service to make
// it ready: until then the pod answers requests for data with 503.
//
// The pod ends when its export is deleted, which the controller does when the export's time is up. When it ends by
// itself, it is started again. It needs no more than MemoryLimit.
package podspec

import (
	"bytes"

	corev1 "k8s.io/api/core/v1"
)

// Ports.
const (
	// HTTPSPort is where the pod serves clients.
	HTTPSPort = 8443
	// TunnelPort is where the pod expects the launcher of a backup, and the Service's port for it.
	TunnelPort = 9090
	// ServicePort is the Service's port for clients.
	ServicePort = 443
)

// What the pod finds where.
const (
	// Directory has everything that is mounted into the pod, except block devices.
	Directory = "/run/varve/export"
	// CertificateDirectory has the certificate with its key.
	CertificateDirectory = Directory + "/certificate"
	// CertificateFile is the certificate, in PEM. Its names are ServiceHosts.
	CertificateFile = CertificateDirectory + "/tls.crt"
	// KeyFile is its key, in PEM (PKCS #8).
	KeyFile = CertificateDirectory + "/tls.key"
	// TokenDirectory has the clients' token and nothing else.
	TokenDirectory = Directory + "/token"
	// TokenFile is the token that clients must send in the header TokenHeader.
	TokenFile = TokenDirectory + "/" + TokenKey
	// ManifestsDirectory has the manifests of a machine, a List in JSON in a file for each Link.
	ManifestsDirectory = Directory + "/manifests"
	// TunnelDirectory has the tunnel's token and nothing else.
	TunnelDirectory = Directory + "/tunnel"
	// TunnelTokenFile is the token with which the launcher proves that it is the backup's.
	TunnelTokenFile = TunnelDirectory + "/" + TokenKey
	// volumesDirectory has a directory for each Filesystem claim, and devicesDirectory a device for each Block claim.
	volumesDirectory = Directory + "/volumes"
	devicesDirectory = "/dev/varve-export"
	diskImage        = "disk.img"
)

const (
	// TokenKey is the key of the token in its Secret.
	TokenKey = "token"
	// MinTokenCharacters is the length that a client's token must have. Nothing slows down who tries one after the other, so
	// that the token alone has to be too much to guess. virtctl's have 20.
	MinTokenCharacters = 16
	// TokenHeader is the header in which clients send the token.
	TokenHeader = "x-kubevirt-export-token"
	// ConfigVariable is the environment variable that has the Config.
	ConfigVariable = "VARVE_EXPORT_CONFIG"
	// Container is the name of the pod's container.
	Container = "exporter"
	// User and Group run the container. KubeVirt's launchers have the same.
	User, Group = 107, 107
	// MemoryRequest and MemoryLimit are the container's memory, and CPURequest and CPULimit its processors.
	MemoryRequest, MemoryLimit = "64Mi", "256Mi"
	CPURequest, CPULimit       = "100m", "4"
)

// Command is what the container runs.
func Command() []string { return []string{"/usr/bin/varve", "export-server"} }

// TokenLength returns how many bytes the token in a client's Secret has. White space around it does not count: no header can have it.
func TokenLength(secret *corev1.Secret) int { return len(bytes.TrimSpace(secret.Data[TokenKey])) }
