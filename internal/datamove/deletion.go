package datamove

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/varvebackup/varve/internal/layout"
)

const (
	// FinalizerDeleteBackup is on a DeleteBackupRequest of Velero's whose backup is deleted, until the data movers have deleted the
	// backup's restore points. Velero 1.18 sets none.
	FinalizerDeleteBackup = "velero.io/dm-delete-backup"
	// AnnotationPointDeletion is on a completed DataUpload that is to be deleted: the PointDeletion that the controller writes, and that
	// its driver waits for.
	AnnotationPointDeletion = layout.Prefix + "restore-point-deletion"
	// LabelDeletion is on the Jobs that delete restore points, and on their pods.
	LabelDeletion = layout.Prefix + "restore-point-deletion"
	// ResultRepository is the key of a DataUpload's dataMoverResult that has the unique ID of the repository with its restore point.
	ResultRepository = "repository"
	// ResultFullReason is the key of a DataUpload's dataMoverResult that says why everything was read; it is absent if the upload was
	// incremental, or could not be.
	ResultFullReason = "fullReason"
	// ResultFullDetail is the key that says it in plain words, if there is more to say.
	ResultFullDetail = "fullDetail"
)

// DeletionVariable is the environment variable of a deletion pod that has its DeletionJob.
const DeletionVariable = "VARVE_DELETION_JOB"

// DeletionVersion is the version of DeletionJob, DeletionReport and PointDeletion that this package writes and reads.
const DeletionVersion = 1

// DeletionLimit is how many restore points one Job deletes at most. Its report must fit into a termination message, 4096 bytes.
const DeletionLimit = 32

// DeletionJobName returns the name of the Job that deletes restore points of a repository. No two of them run at once, because they have
// one name.
func DeletionJobName(repository string) string {
	sum := sha256.Sum256([]byte(repository))
	return "delete-points-" + hex.EncodeToString(sum[:10])
}

// DeletionJob says what a deletion pod does. It holds no secret.
type DeletionJob struct {
	// Version is DeletionVersion.
	Version int `json:"version"`
	// Repository is the unique ID of the repository. In another one nothing is deleted, and nothing counts as absent.
	Repository string `json:"repository"`
	// Points are the restore points, at most DeletionLimit.
	Points []PointToDelete `json:"points"`
}

// PointToDelete is a restore point.
type PointToDelete struct {
	ID string `json:"id"`
	// Backup and BackupUID are set if it is to be deleted because it belongs to a backup of Velero's: the values that LabelBackupName and
	// LabelBackupUID of the restore point must have. An empty BackupUID is any.
	Backup    string `json:"backup,omitempty"`
	BackupUID string `json:"backupUID,omitempty"`
}

// Encode returns the job as DeletionVariable has it.
func (j DeletionJob) Encode() string {
	j.Version = DeletionVersion
	return encodeJSON(j)
}

// DecodeDeletionJob reads the value of DeletionVariable. It refuses fields and versions that it does not know.
func DecodeDeletionJob(text string) (DeletionJob, error) {
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	var j DeletionJob
	if err := decoder.Decode(&j); err != nil {
		return DeletionJob{}, fmt.Errorf("decode %s: %w", DeletionVariable, err)
	}
	switch {
	case j.Version != DeletionVersion:
		return DeletionJob{}, fmt.Errorf("%s: version %d, want %d", DeletionVariable, j.Version, DeletionVersion)
	case j.Repository == "" || len(j.Points) == 0 || len(j.Points) > DeletionLimit:
		return DeletionJob{}, errors.New(DeletionVariable + ": no repository, no restore points, or too many")
	}
	for _, p := range j.Points {
		if !pointPattern.MatchString(p.ID) {
			return DeletionJob{}, fmt.Errorf("%s: restore point %q is not 32 hexadecimal digits", DeletionVariable, p.ID)
		}
	}
	return j, nil
}

// KeptReason says why a restore point was not deleted.
type KeptReason string

const (
	// KeptPinned: somebody has pinned it.
	KeptPinned KeptReason = "Pinned"
	// KeptLocked: the storage locks what was written, until Kept.Until.
	KeptLocked KeptReason = "Locked"
	// KeptBackupThere: the backup of Velero's that it belongs to is in the location.
	KeptBackupThere KeptReason = "BackupThere"
	// KeptForeign: it belongs to another backup than the one that was deleted.
	KeptForeign KeptReason = "Foreign"
	// KeptLocationGone: the location is gone, and so is the way to its restore points.
	KeptLocationGone KeptReason = "LocationGone"
	// KeptReplaced: the location has another repository than the one that the restore point is in.
	KeptReplaced KeptReason = "Replaced"
)

// Kept is why a restore point was not deleted.
type Kept struct {
	Why KeptReason `json:"why"`
	// Until is set if it is known when it can be deleted.
	Until *time.Time `json:"until,omitempty"`
}

// DeletionReport is the termination message of a deletion pod that has succeeded: the restore points that were kept. All others of its job
// are not there any more.
type DeletionReport struct {
	Version int             `json:"version"`
	Kept    map[string]Kept `json:"kept,omitempty"`
}

// Encode returns the report as a termination message has it.
func (r DeletionReport) Encode() string {
	r.Version = DeletionVersion
	return encodeJSON(r)
}

// DecodeDeletionReport reads what Encode wrote.
func DecodeDeletionReport(text string) (DeletionReport, error) {
	var r DeletionReport
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return DeletionReport{}, fmt.Errorf("decode the report of a deletion: %w", err)
	}
	if r.Version != DeletionVersion {
		return DeletionReport{}, fmt.Errorf("decode the report of a deletion: version %d, want %d", r.Version, DeletionVersion)
	}
	return r, nil
}

// DeletionState says how far the deletion of a restore point is.
type DeletionState string

const (
	// DeletionWaits: it is there, or may be there.
	DeletionWaits DeletionState = "Waits"
	// DeletionDone: it is not in its repository any more.
	DeletionDone DeletionState = "Done"
	// DeletionLeft: it stays, and the DataUpload need not wait for it.
	DeletionLeft DeletionState = "Left"
)

// PointDeletion is AnnotationPointDeletion.
type PointDeletion struct {
	Version int `json:"version"`
	// UID is the DataUpload's. Of another one, such as that which it is a copy of, it says nothing.
	UID   types.UID     `json:"uid"`
	State DeletionState `json:"state"`
	// Message says what is waited for, or why the restore point stays.
	Message string `json:"message,omitempty"`
	// Tries is how often a Job has tried in vain, and RetryAt when the next one may.
	Tries   int        `json:"tries,omitempty"`
	RetryAt *time.Time `json:"retryAt,omitempty"`
	// Why is the reason of Message if it is a KeptReason, and Since is since when it holds.
	Why   KeptReason `json:"why,omitempty"`
	Since *time.Time `json:"since,omitempty"`
	// ForBackup: the DataUpload did not make the restore point, or is not deleted, and a DeleteBackupRequest has it deleted.
	ForBackup bool `json:"forBackup,omitempty"`
}

// Over says that nothing is waited for.
func (d PointDeletion) Over() bool { return d.State == DeletionDone || d.State == DeletionLeft }

// Encode returns the deletion as AnnotationPointDeletion has it.
func (d PointDeletion) Encode() string {
	d.Version = DeletionVersion
	return encodeJSON(d)
}

// PointDeletionOf returns what a DataUpload's AnnotationPointDeletion says. What cannot be read, or is about another DataUpload, is as if it
// were not there: the controller writes it again.
func PointDeletionOf(upload metav1.Object) PointDeletion {
	var d PointDeletion
	err := json.Unmarshal([]byte(upload.GetAnnotations()[AnnotationPointDeletion]), &d)
	if err != nil || d.Version != DeletionVersion || d.UID != upload.GetUID() {
		return PointDeletion{}
	}
	return d
}

func encodeJSON(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings, numbers and times
	}
	return string(text)
}

// LocationPrefix returns the location's own prefix, "" or with a slash at its end, of a repository whose RepositoryPrefix is given. It
// returns false if no repository has such a prefix.
func LocationPrefix(repositoryPrefix string) (string, bool) {
	parent, volumeNamespace := cutLast(strings.TrimSuffix(repositoryPrefix, "/"))
	prefix, ok := strings.CutSuffix(parent, "plugins/"+Mover+"/")
	if !ok || volumeNamespace == "" || prefix != "" && !strings.HasSuffix(prefix, "/") {
		return "", false
	}
	return prefix, true
}

// cutLast cuts what follows the last slash.
func cutLast(path string) (before, after string) {
	i := strings.LastIndex(path, "/") + 1
	return path[:i], path[i:]
}

// BackupLabel returns the value of LabelBackupName for a backup: its name, shortened as Velero does (pkg/label GetValidName).
func BackupLabel(backup string) string {
	if len(backup) <= labelValueLimit {
		return backup
	}
	sum := sha256.Sum256([]byte(backup))
	return backup[:labelValueLimit-labelHash] + hex.EncodeToString(sum[:])[:labelHash]
}

// labelHash is how many characters of a shortened label are a hash.
const labelHash = 6

// BackupStem returns what the names of all backups begin with whose BackupLabel is label.
func BackupStem(label string) string {
	if len(label) < labelValueLimit {
		return label
	}
	return label[:labelValueLimit-labelHash]
}
