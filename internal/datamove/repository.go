package datamove

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/varvebackup/varve/internal/layout"
)

const (
	// AnnotationUniqueID is on a BackupRepository: the Access.UniqueID of the repository that was made or found there. Another one in
	// its place is never used.
	AnnotationUniqueID = layout.Prefix + "repository-unique-id"
	// AnnotationPasswordSecret is on a BackupRepository: the name of the Secret that has its password.
	AnnotationPasswordSecret = layout.Prefix + "repository-password-secret"
	// AnnotationContents is on a BackupRepository: how many contents its index had at the end of the last maintenance.
	// RoomFor has the size of the next Jobs from it.
	AnnotationContents = layout.Prefix + "repository-contents"
	// AnnotationCollectMissing is on a BackupRepository: a time in RFC 3339. The user agrees that the backups that went
	// missing until then together with most others were deleted, and their restore points are to be, too.
	AnnotationCollectMissing = layout.Prefix + "collect-missing-backups"
	// CollectMissingVariable is the environment variable of a maintenance pod that has AnnotationCollectMissing.
	CollectMissingVariable = "VARVE_COLLECT_MISSING_BACKUPS"
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

// JobCacheBytes is how much data and metadata a Job that works in a repository caches at most, beside the indexes.
const JobCacheBytes = 2 << 30

const (
	// memoryPerContent and scratchPerContent are what a content of the index takes, in bytes. In memory 33 while the
	// index is used, and as much again while maintenance finds garbage. In the cache 66, because kopia has each index
	// there as it was read and as it is used, and as much again while indexes are merged.
	memoryPerContent, scratchPerContent = 66, 132
	// baseMemory and baseScratch are what it takes beside the index.
	baseMemory, baseScratch = 512 << 20, JobCacheBytes + 512<<20
	// The bounds of a Job. An index of 400 million contents, 100 TiB in blocks of 256 KiB, is below the upper ones.
	minMemory, maxMemory   = 1 << 30, 32 << 30
	minScratch, maxScratch = 4 << 30, 64 << 30
)

// Room is what a Job needs to work in a repository, in bytes.
type Room struct {
	// Memory is the limit of its memory, and Scratch the size of its directory /tmp, which has the cache.
	Memory, Scratch int64
}

// RoomFor returns the room for a repository whose index has so many contents; 0: it is not known yet.
func RoomFor(contents int64) Room {
	return Room{
		Memory:  max(minMemory, min(baseMemory+memoryPerContent*boundedContents(contents), maxMemory)),
		Scratch: max(minScratch, min(baseScratch+IndexScratch(contents), maxScratch)),
	}
}

// IndexScratch returns what the cache of a pod takes for an index of so many contents, in bytes.
func IndexScratch(contents int64) int64 { return scratchPerContent * boundedContents(contents) }

// boundedContents keeps products of a number of contents from overflowing.
func boundedContents(contents int64) int64 {
	return max(0, min(contents, maxScratch/scratchPerContent))
}

// ContentsOf returns what AnnotationContents says; 0 if it says nothing.
func ContentsOf(repository metav1.Object) int64 {
	contents, err := strconv.ParseInt(repository.GetAnnotations()[AnnotationContents], 10, 64)
	if err != nil {
		return 0
	}
	return contents
}

// MaintenanceReport is what a maintenance pod leaves as its termination message if maintenance succeeded.
type MaintenanceReport struct {
	// Contents is for AnnotationContents.
	Contents int64 `json:"contents"`
	// Remark says what the run could not do although maintenance itself succeeded; "" if it did everything.
	Remark string `json:"remark,omitempty"`
}

// maxRemarkBytes bounds a remark in a termination message, which a kubelet cuts at 4096 bytes. Quoting may double it.
const maxRemarkBytes = 1900

// Encode returns the report as a termination message.
func (m MaintenanceReport) Encode() []byte {
	if len(m.Remark) > maxRemarkBytes {
		m.Remark = strings.ToValidUTF8(m.Remark[:maxRemarkBytes], "") + "…"
	}
	return []byte(encodeJSON(m))
}

// DecodeMaintenanceReport reads what Encode wrote. Anything else is a remark: a kubelet takes the end of the log of a
// pod that has left nothing.
func DecodeMaintenanceReport(text string) MaintenanceReport {
	var m MaintenanceReport
	if err := json.Unmarshal([]byte(text), &m); err != nil || m.Contents < 0 {
		return MaintenanceReport{Remark: text}
	}
	return m
}

// shortenName cuts a name to what leaves room for a prefix and a hash in a label.
func shortenName(name string) string {
	if len(name) > 40 {
		name = name[:40]
	}
	return strings.Trim(strings.ToLower(name), "-.")
}
