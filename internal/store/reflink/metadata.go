package reflink

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
)

// formatVersion is the version of everything that is written to a disk.
const formatVersion = 1

// maxMetadataBytes is more than the metadata of a replica with maxObjects objects, whatever their names are.
const maxMetadataBytes = 4 << 20

// maxObjects is how many snapshots and heads a replica has.
const maxObjects = 1024

// header is the content of varve-disk.json, which makes a directory a disk.
type header struct {
	Format int      `json:"format"`
	UUID   disk.UID `json:"uuid"`
}

// metadata is the content of a meta.json. An object exists because it is in one.
type metadata struct {
	Format  int     `json:"format"`
	Objects []entry `json:"objects"` // a replica's snapshots, oldest first, and then its head; or one image
}

// entry is an object in a meta.json.
type entry struct {
	Name     disk.Name `json:"name"`
	UID      disk.UID  `json:"uid"`
	Kind     disk.Kind `json:"kind"`
	Parent   disk.UID  `json:"parent,omitempty"`
	Origin   disk.UID  `json:"origin,omitempty"` // a head's first parent, or the head that was sealed
	Bytes    int64     `json:"bytes"`
	Checksum string    `json:"checksum,omitempty"`
}

func (e entry) validate() error {
	if err := e.Name.Validate(); err != nil {
		return err
	}
	for _, u := range []disk.UID{e.UID, e.Parent, e.Origin} {
		if err := u.Validate(); err != nil && (u != "" || e.UID == "") {
			return err
		}
	}
	switch {
	case e.Kind != disk.KindHead && e.Kind != disk.KindSnapshot && e.Kind != disk.KindImage:
		return errclass.Errorf(errclass.Invalid, "%s: the kind %q is unknown", e.UID, e.Kind)
	case e.Bytes <= 0:
		return errclass.Errorf(errclass.Invalid, "%s: %d bytes: use more than 0", e.UID, e.Bytes)
	}
	return disk.ValidateChecksum(e.Checksum)
}

// decodeMetadata reads a meta.json. An error is of class Corrupt, or Invalid if a newer version wrote it.
func decodeMetadata(data []byte) (metadata, error) {
	var m metadata
	if err := decodeVersioned(data, &m); err != nil {
		return metadata{}, err
	}
	seen := map[disk.UID]bool{}
	for i, e := range m.Objects {
		last := i == len(m.Objects)-1
		switch err := e.validate(); {
		case err != nil:
			return metadata{}, fmt.Errorf("%w: object %d: %w", errclass.Corrupt, i, err)
		case seen[e.UID]:
			return metadata{}, fmt.Errorf("%w: the UID %s is there twice", errclass.Corrupt, e.UID)
		case e.Kind == disk.KindImage && len(m.Objects) > 1, e.Kind == disk.KindHead && !last:
			return metadata{}, fmt.Errorf("%w: the %s %s is not alone or not the last", errclass.Corrupt, e.Kind, e.UID)
		}
		seen[e.UID] = true
	}
	if len(m.Objects) == 0 || len(m.Objects) > maxObjects {
		return metadata{}, fmt.Errorf("%w: %d objects, not 1 to %d", errclass.Corrupt, len(m.Objects), maxObjects)
	}
	return m, nil
}

// decodeVersioned decodes JSON with a format version, strictly.
func decodeVersioned(data []byte, into any) error {
	var version struct {
		Format int `json:"format"`
	}
	if len(data) > maxMetadataBytes {
		return fmt.Errorf("%w: %d bytes are too many", errclass.Corrupt, len(data))
	}
	if err := json.Unmarshal(data, &version); err != nil {
		return fmt.Errorf("%w: %w", errclass.Corrupt, err)
	}
	switch {
	case version.Format > formatVersion:
		return errclass.Errorf(errclass.Invalid, "it has format version %d, and this Varve knows 1 to %d: use a newer Varve",
			version.Format, formatVersion)
	case version.Format != formatVersion:
		return fmt.Errorf("%w: format version %d", errclass.Corrupt, version.Format)
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return fmt.Errorf("%w: %w", errclass.Corrupt, err)
	}
	return nil
}

// encodeIndented returns what a file of a disk holds.
func encodeIndented(value any) ([]byte, error) {
	data, err := json.MarshalIndent(value, "", "  ")
	return append(data, '\n'), err
}

// readMetadata reads the meta.json of a group.
func readMetadata(path string) (metadata, error) {
	info, err := os.Stat(path)
	if err == nil && info.Size() > maxMetadataBytes {
		err = fmt.Errorf("%w: %d bytes are too many", errclass.Corrupt, info.Size())
	}
	if err != nil {
		return metadata{}, err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return metadata{}, err
	}
	return decodeMetadata(data)
}

// appended returns m with a snapshot of its head, which becomes the head's parent.
func (m metadata) appended(snapshot entry) metadata {
	objects := slices.Clone(m.Objects)
	head := len(objects) - 1
	snapshot.Parent, objects[head].Parent = objects[head].Parent, snapshot.UID
	return metadata{Format: formatVersion, Objects: slices.Insert(objects, head, snapshot)}
}

// without returns m without an object, whose clones in m become those of its parent.
func (m metadata) without(gone entry) metadata {
	out := metadata{Format: formatVersion}
	for _, e := range m.Objects {
		if e.Parent == gone.UID {
			e.Parent = gone.Parent
		}
		if e.UID != gone.UID {
			out.Objects = append(out.Objects, e)
		}
	}
	return out
}
