package storage

import (
	"strings"

	"github.com/kopia/kopia/repo/blob"
)

// Names of the blobs that Varve adds to kopia's, and of kopia's that it looks at.
const (
	// FormatCopy is a blob with a copy of FormatBlobs. Nothing can be read without those, and kopia has only one of each.
	FormatCopy blob.ID = "varve.format"
	// RecordPrefix and a restore point's ID name the blob that holds its record.
	RecordPrefix = "varve.point-"
	// DeletingPrefix and a restore point's ID name a blob that exists while the restore point is being deleted. The record goes
	// first, and nobody may take it for missing.
	DeletingPrefix = "varve.deleting-"
	// DamagedPrefix and the name of a pack name a blob that exists because the pack has other bytes than were written. No backup
	// takes for stored what is in that pack.
	DamagedPrefix = "varve.damaged-"
	// IndexPrefix begins the names of kopia's index blobs.
	IndexPrefix = "x"
)

// IsIndex says whether a blob is one of kopia's indexes.
func IsIndex(id blob.ID) bool { return strings.HasPrefix(string(id), IndexPrefix) }
