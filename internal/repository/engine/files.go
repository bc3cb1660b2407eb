package engine

import (
	"github.com/kopia/kopia/repo/object"
)

// FilesName stands for the files of a restore point where disks have names. No disk in a volume's history has it.
const FilesName = "(files)"

// Files is the tree of files of a restore point, as the entry varve.json describes it. A restore point has files or disks, never both.
type Files struct {
	// Tree is the kopia directory with the files.
	Tree object.ID `json:"tree"`
	// Attributes is the object with what kopia's directories have no place for.
	Attributes object.ID `json:"attributes"`
	// Count is how many regular files there are, and Bytes the sum of their sizes, holes included. A file with several names counts
	// once for each.
	Count int64 `json:"count"`
	Bytes int64 `json:"bytes"`
	// Directories, Symlinks and Specials (pipes and devices) count the rest. Directories includes the root.
	Directories int64 `json:"directories"`
	Symlinks    int64 `json:"symlinks"`
	Specials    int64 `json:"specials"`
	// SymlinkBytes is the length of what symbolic links point to.
	SymlinkBytes int64 `json:"symlinkBytes,omitempty"`
	// Sockets were left out.
	Sockets int64 `json:"sockets,omitempty"`
	// Identity distinguishes the volume from another one with the same source.
	Identity string `json:"identity,omitempty"`
	// Changed is the latest time at which anything in the tree was changed (its ctime), in nanoseconds since 1970, or when the backup began
	// if that is earlier. The next backup reads every file again that was changed at this time or later, even if it looks the same.
	Changed int64 `json:"changed"`
	// Parent is the restore point from which unchanged files were taken over; "": none. FullReason then says why.
	Parent     string     `json:"parent,omitempty"`
	FullReason FullReason `json:"fullReason,omitempty"`
	Stats      FilesStats `json:"stats"`
}

// FilesStats says what a backup did with files.
type FilesStats struct {
	// ReadFiles were read, and ReadBytes of them. ReadBytes does not include holes.
	ReadFiles int64 `json:"readFiles"`
	ReadBytes int64 `json:"readBytes"`
	// KeptFiles and KeptBytes were taken over.
	KeptFiles int64 `json:"keptFiles"`
	KeptBytes int64 `json:"keptBytes"`
}
