// Package verify looks for damage: in what a repository stores, in what keeps kopia from opening it, and in what an incremental
// takes over from its parent.
//
// Damage is what the storage answers for and is not as it was written: errclass.Corrupt, and never because of a storage that does
// not answer. Nothing here changes the repository.
//
// All functions are safe for concurrent use.
package verify
