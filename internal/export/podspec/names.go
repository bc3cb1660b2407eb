package podspec

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// maxLabel is the longest DNS label, and the longest value of a label of Kubernetes.
const maxLabel = 63

// maxName is the longest name of a Secret and of a ConfigMap.
const maxName = 253

// Pod returns the name of an export's pod.
func Pod(export string) string { return labelName("virt-export-", export, "") }

// Service returns the name of an export's Service.
func Service(export string) string { return labelName("virt-export-", export, "") }

// CertificateSecret returns the name of the Secret with an export's certificate.
func CertificateSecret(export string) string { return labelName("virt-export-", export, "-cert") }

// TokenSecret returns the name of the Secret with the token of an export that names none.
func TokenSecret(export string) string { return labelName("export-token-", export, "") }

// ManifestsSecret returns the name of the Secret with what ManifestsDirectory has.
func ManifestsSecret(export string) string { return labelName("virt-export-", export, "-manifests") }

// HeaderSecret returns the name that the Secret of ManifestAuthHeader has where it is applied, as upstream has it.
func HeaderSecret(export string) string { return appliedName("header-secret-", export) }

// CAConfigMap returns the name that the ConfigMap with the authorities has where it is applied, as upstream has it.
func CAConfigMap(export string) string { return appliedName("export-ca-cm-", export) }

// appliedName returns prefix+export if that is a name of an object, and otherwise one that is cut.
func appliedName(prefix, export string) string {
	if name := prefix + export; len(name) <= maxName {
		return name
	}
	return labelName(prefix, export, "")
}

// labelName returns prefix+export+suffix if that is a DNS label. Otherwise it returns one that is cut and has a hash of
// the whole.
func labelName(prefix, export, suffix string) string {
	name := prefix + export + suffix
	if len(name) <= maxLabel && !strings.Contains(export, ".") {
		return name
	}
	sum := sha256.Sum256([]byte(export))
	end := "-" + hex.EncodeToString(sum[:5]) + suffix
	head := prefix + strings.ReplaceAll(export, ".", "-")
	if most := maxLabel - len(end); len(head) > most {
		head = head[:most]
	}
	return head + end
}

// ServiceHosts returns the names under which clients in the cluster reach an export. The first one is that of links.
func ServiceHosts(namespace, export string) []string {
	host := Service(export) + "." + namespace + ".svc"
	return []string{host, host + ".cluster.local"}
}
