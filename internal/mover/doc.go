// Package mover moves disks into a repository and out of it. It joins what reads and writes disks (package disk) with
// what keeps them (package repository), and decides what happens around that. The command line uses it, and so can a
// pod that moves the disk of a machine.
//
// A Source is a disk to back up, a Destination is where a restore writes one, and a history is the restore points of
// one machine: those of one repository.Source.
//
//   - Backup makes a restore point of sources. It needs no lease: the repository keeps what a running backup has stored.
//   - Restore and OpenExport read a restore point. Call them from WithLease, or a deletion ends them in read errors.
//   - SurveyPrune and Decide say which restore points a policy keeps, and why. Repository.Delete removes the others.
//   - Points and FindDeletable find restore points, Verify finds damage.
//
// The package takes plain structs and knows no flags and no terminal: a caller words hints and draws progress. Every
// function may be called from any goroutine. A callback for progress runs with no lock held, in one goroutine at a
// time. It delays its job only before a disk's first read or write, and at the end.
//
// Errors have the classes of errclass. Where a caller can give advice of its own, the error has a type of its own. A job
// ends when its context does, as soon as what it has done is stored; a CancelGrace bounds that.
package mover
