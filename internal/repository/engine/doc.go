// Package engine is what verification, maintenance, backups and restores share: a connection to a kopia repository, and what Varve
// keeps in one beside the content of disks.
//
//   - Connection: opening, reading what others have stored, and checks before a change.
//   - ContentReader: contents, read past kopia where that is possible, and damage told from a storage that does not answer.
//   - RestorePoint and StoredPoint: restore points and the manifests that they are stored as, found even if some are damaged.
//   - Lock, Lease and the session manifest: manifests that keep other machines from maintaining, and garbage collection from what
//     is in use. Each is stored before its owner looks for others, so that of two owners at least one sees the other.
//   - Records and the copy of the format: blobs that say what must be there, and bring it back.
//
// A Connection is safe for concurrent use. Errors have the classes of errclass.
package engine
