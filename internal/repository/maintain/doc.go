// Package maintain changes a repository as a whole: it frees what no restore point refers to, merges manifests, renews what
// restores damage (the records and the copy of the format), drops what processes that died have left, and repairs.
//
// Whoever changes a repository as a whole holds its lock, and ends when the lock is lost. Nothing is freed while a restore point
// is lost or a table cannot be read.
package maintain
