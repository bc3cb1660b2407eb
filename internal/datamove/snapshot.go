package datamove

import (
	"errors"
	"net/url"
	"strconv"
	"strings"

	"github.com/varvebackup/varve/internal/errclass"
)

// SnapshotTokenDirectory is where a mover pod has the token for the SnapshotMetadata service of its snapshot's driver, in the file
// SnapshotTokenKey. It is a token of the pod's own account for the service's audience: the API server does not take it.
const (
	SnapshotTokenDirectory = "/run/varve/snapshot-metadata"
	SnapshotTokenKey       = "token"
)

// SnapshotSource is the CSI snapshot that a Block volume was made from.
type SnapshotSource struct {
	SnapshotMoment
	// Metadata is how to ask the driver what the snapshot has, and what has changed; nil: it is not asked.
	Metadata *SnapshotMetadata `json:"metadata,omitempty"`
	// NoMetadata says why Metadata is nil.
	NoMetadata string `json:"noMetadata,omitempty"`
}

// SnapshotMetadata is how to ask the SnapshotMetadata service of a CSI driver about a snapshot.
type SnapshotMetadata struct {
	// Address, CA and Audience are those of the service (csichanges.Service).
	Address  string `json:"address"`
	CA       []byte `json:"ca"`
	Audience string `json:"audience"`
	// Namespace and Name are those of the VolumeSnapshot in Varve's namespace.
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// SnapshotMoment is what a CSI snapshot is on its storage.
type SnapshotMoment struct {
	Driver string `json:"driver"`
	// Volume is the handle of the volume that the snapshot is of, and Snapshot its own handle.
	Volume   string `json:"volume"`
	Snapshot string `json:"snapshot"`
	// Taken is when the storage took it, in nanoseconds since 1970; 0: not known.
	Taken int64 `json:"taken,omitempty"`
}

// momentScheme is what the name of a moment begins with.
const momentScheme = "csi-snapshot"

// Name returns the moment's name in a restore point, by its ID. A driver may give a handle twice. The ID makes the name unique all the
// same.
func (m SnapshotMoment) Name(point string) string {
	return strings.Join([]string{momentScheme, point, url.QueryEscape(m.Driver), url.QueryEscape(m.Volume), url.QueryEscape(m.Snapshot), strconv.FormatInt(m.Taken, 10)}, ":")
}

// ParseSnapshotMoment reads what Name has returned for the restore point. Any other name is an error: that of a checkpoint, or one that
// was copied from another restore point.
func ParseSnapshotMoment(point, name string) (SnapshotMoment, error) {
	parts := strings.Split(name, ":")
	if len(parts) != 6 || parts[0] != momentScheme || parts[1] != point {
		return SnapshotMoment{}, errclass.Errorf(errclass.Invalid, "%q is no CSI snapshot of restore point %s", name, point)
	}
	var m SnapshotMoment
	var err error
	for i, to := range []*string{&m.Driver, &m.Volume, &m.Snapshot} {
		if *to, err = url.QueryUnescape(parts[2+i]); err != nil {
			return SnapshotMoment{}, errclass.Errorf(errclass.Invalid, "CSI snapshot %q: %w", name, err)
		}
	}
	if m.Taken, err = strconv.ParseInt(parts[5], 10, 64); err != nil {
		return SnapshotMoment{}, errclass.Errorf(errclass.Invalid, "CSI snapshot %q: %w", name, err)
	}
	return m, nil
}

func (s *SnapshotSource) validate() error {
	m := s.Metadata
	switch {
	case s.Driver == "" || s.Volume == "" || s.Snapshot == "":
		return errors.New("a snapshot without a driver or a handle")
	case (m == nil) != (s.NoMetadata != ""):
		return errors.New("a snapshot without a metadata service and without the reason, or with both")
	case m != nil && (m.Address == "" || len(m.CA) == 0 || m.Audience == "" || m.Namespace == "" || m.Name == ""):
		return errors.New("an incomplete metadata service")
	}
	return nil
}
