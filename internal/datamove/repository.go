package datamove

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/varvebackup/varve/internal/layout"
)

const (
	// AnnotationUniqueID is on a BackupRepository: the Access.UniqueID of the repository that was made or found there. Another one in
	// its place is never used.
	AnnotationUniqueID = layout.Prefix + "repository-unique-id"
	// AnnotationPasswordSecret is on a BackupRepository: the name of the Secret that has its password.
	AnnotationPasswordSecret = layout.Prefix + "repository-password-secret"
	// LabelMaintenance is on the Jobs that maintain repositories, and on their pods.
	LabelMaintenance = layout.Prefix + "repository-maintenance"
)

// PasswordKey is the key of a password's Secret that has the password.
const PasswordKey = "password"

// LocationPasswordSecret returns the name of the Secret, in Varve's namespace, with the password of the repositories in a location.
func LocationPasswordSecret(location Location) string {
	return passwordSecret(location.Name, location.Namespace+"/"+location.Name)
}

// NamespacePasswordSecret returns the name of the Secret, in Varve's namespace, with the password of one namespace's repository in a
// location.
func NamespacePasswordSecret(volumeNamespace string, location Location) string {
	return passwordSecret(volumeNamespace, volumeNamespace+"/"+location.Namespace+"/"+location.Name)
}

func passwordSecret(readable, key string) string {
	sum := sha256.Sum256([]byte(key))
	return "repository-password-" + shortenName(readable) + "-" + hex.EncodeToString(sum[:8])
}

// MaintenanceJob returns the name of the Job that maintains a repository. No two of them run at once, because they have one name.
func MaintenanceJob(repository string) string {
	sum := sha256.Sum256([]byte(repository))
	return "maintain-" + hex.EncodeToString(sum[:10])
}

// shortenName cuts a name to what leaves room for a prefix and a hash in a label.
func shortenName(name string) string {
	if len(name) > 40 {
		name = name[:40]
	}
	return strings.Trim(strings.ToLower(name), "-.")
}
