package datamove

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/varvebackup/varve/internal/layout"
)

// LabelKeptSnapshot is on a VolumeSnapshot in Varve's namespace that outlives the work of its DataUpload, so that the next upload of the claim
// can be counted from it. Its value is the KeptSnapshot's Key, and AnnotationKeptSnapshot has the KeptSnapshot. Whoever sets them hands the
// VolumeSnapshot over to the controller keptsnapshot, which deletes it. The content has the policy Delete, so the snapshot goes with it.
const (
	LabelKeptSnapshot      = layout.Prefix + "kept-snapshot"
	AnnotationKeptSnapshot = layout.Prefix + "kept-snapshot"
)

// KeptSnapshot says what a VolumeSnapshot is kept for.
type KeptSnapshot struct {
	// Upload and UploadUID are the DataUpload whose restore point is of the snapshot.
	Upload    types.NamespacedName `json:"upload"`
	UploadUID types.UID            `json:"uploadUID"`
	// Claim and ClaimUID are the claim that the snapshot is of.
	Claim    types.NamespacedName `json:"claim"`
	ClaimUID types.UID            `json:"claimUID"`
	// StorageClass is the one whose setting has it kept, Driver the CSI driver.
	StorageClass string `json:"storageClass"`
	Driver       string `json:"driver"`
	// Repository is the name of the BackupRepository with the restore point.
	Repository string `json:"repository"`
}

// Key is the same for all snapshots of which one is kept: those of a claim whose restore points are in one repository.
func (k KeptSnapshot) Key() string {
	sum := sha256.Sum256([]byte(string(k.ClaimUID) + "/" + k.Repository))
	return hex.EncodeToString(sum[:16])
}

// Encode returns it as AnnotationKeptSnapshot has it.
func (k KeptSnapshot) Encode() string {
	text, err := json.Marshal(k)
	if err != nil {
		panic(err) // strings
	}
	return string(text)
}

// DecodeKeptSnapshot reads AnnotationKeptSnapshot. Fields that it does not know are ignored.
func DecodeKeptSnapshot(text string) (KeptSnapshot, error) {
	var k KeptSnapshot
	if err := json.Unmarshal([]byte(text), &k); err != nil {
		return KeptSnapshot{}, fmt.Errorf("decode %s: %w", AnnotationKeptSnapshot, err)
	}
	if k.UploadUID == "" || k.ClaimUID == "" || k.Driver == "" || k.Repository == "" {
		return KeptSnapshot{}, errors.New("decode " + AnnotationKeptSnapshot + ": it does not say what the snapshot is kept for")
	}
	return k, nil
}
