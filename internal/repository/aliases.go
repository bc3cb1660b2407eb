package repository

import (
	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/internal/repository/image"
	"github.com/varvebackup/varve/internal/repository/storage"
)

// What the packages below share with the callers of this one.
type (
	// CreateOptions are permanent properties of a repository.
	CreateOptions = engine.CreateOptions
	// ConnectOptions are properties of this machine's connection.
	ConnectOptions = engine.ConnectOptions
	// Source says whose disks a history holds: kopia's user@host:path.
	Source = engine.Source
	// RestorePoint is what the disks of a source held at one moment.
	RestorePoint = engine.RestorePoint
	// Filter selects restore points: those that have all of what is set.
	Filter = engine.Filter
	// Disk is one disk of a restore point.
	Disk = engine.Disk
	// Stats says what a backup did with a disk, in bytes.
	Stats = engine.Stats
	// FullReason says why a disk was read as a whole.
	FullReason = engine.FullReason
	// Files is the tree of files of a restore point.
	Files = engine.Files
	// FilesStats says what a backup did with files.
	FilesStats = engine.FilesStats
	// Definition describes the definition of a machine that a restore point has.
	Definition = engine.Definition
	// Image gives random access to a disk of a restore point.
	Image = image.Image
	// Target takes a disk that is being restored. Its methods are called from several goroutines.
	Target = image.Target
	// RestoreOptions are for Image.Restore.
	RestoreOptions = image.RestoreOptions
	// Lease keeps the content of a restore point while somebody reads it.
	Lease = engine.Lease
)

// Limits of a restore point's labels: see package engine.
const (
	MaxLabels          = engine.MaxLabels
	MaxLabelKeyBytes   = engine.MaxLabelKeyBytes
	MaxLabelValueBytes = engine.MaxLabelValueBytes
	MaxGroupBytes      = engine.MaxGroupBytes
)

// FilesName stands for the files of a restore point where disks have names.
const FilesName = engine.FilesName

// What a restore point has besides its disks: see package engine.
const (
	DefinitionEntry    = engine.DefinitionEntry
	MaxDefinitionBytes = engine.MaxDefinitionBytes
)

// The reasons why a disk was read as a whole: see package engine.
const (
	FullAsked         = engine.FullAsked
	FullNoParent      = engine.FullNoParent
	FullNoChanges     = engine.FullNoChanges
	FullOtherBase     = engine.FullOtherBase
	FullOtherIdentity = engine.FullOtherIdentity
	FullOtherContent  = engine.FullOtherContent
	FullParentDamaged = engine.FullParentDamaged
	FullParentLater   = engine.FullParentLater
)

// Location is where a repository's blobs are, and S3 is a bucket.
type (
	Location = storage.Location
	S3       = storage.S3
	Role     = storage.Role
)
