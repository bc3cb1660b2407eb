// Package storage opens what holds a repository's blobs, a directory or an S3 bucket, and makes up for what kopia's blob.Storage
// leaves to its callers. Each of these is a storage around another one:
//
//   - a directory that survives a loss of power (NewDirectory),
//   - requests that a silent server does not hold up forever (NewStallDetector),
//   - errors that say when a storage takes no more data (MarkFull),
//   - the guard, which lets nobody but the holder of the maintenance lock merge manifests, and keeps indexes out of a repository
//     that has taken the place of the one that was opened (NewGuard),
//   - a view that hides or replaces blobs, to look at damage (View),
//   - deletions that kopia hears no failure of (QuietDeletions).
//
// A storage knows the names of blobs, and not what is in them, except for the format.
//
// All storages are safe for concurrent use. Errors have the classes of errclass; ErrUnreachable, ErrFull and ErrNoBucket are those
// that callers answer in a way of their own, and package advice says what users do about them.
package storage
