// Package location reads BackupStorageLocations: it says where the repositories of a location are, and how they are reached, or which
// field of the location keeps Varve from using it.
//
// Locations that were made for Velero work as they are. Their config is read as Velero's plugin for S3 reads it; a key that Varve does
// not follow is either named in Place.Ignored, when backups are as safe without it, or refused. Two providers are Varve's own: a claim,
// and an NFS export.
//
// The package is pure: its callers read the Secrets. Errors are of class errclass.Invalid, begin with the name of the field, and hold no
// secret.
package location
