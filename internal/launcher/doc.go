// Package launcher runs one guest in one pod. It serves launcher.proto to the node's handler and drives the guest's
// domain through a small interface, Guest, which domain.Session implements.
//
// The life of a guest is one pure state machine (life). It receives everything that happens to the guest, and Watch
// sends its phase. A launcher starts one guest once. When the guest has ended, the launcher waits until its handler
// has seen that (Exit, or 10 seconds) and ends too, with exit code 0 after any shutdown and 1 after a crash or a failed start.
//
// When libvirtd or the connection to it dies, nobody can tell any more what the guest does, and its backups, its
// checkpoints and its shutdown are out of reach. The launcher then ends QEMU with SIGTERM, on which QEMU closes its
// disks properly, and counts the guest as crashed.
//
// A migration has a launcher on each side. The source's (Migrate) has libvirt move the guest through package relay.
// The target's (PrepareMigration) opens no disk and starts nothing. When the guest has arrived it stands still, and
// goes on only when the source's launcher, whose QEMU is gone, says so, or the handler (FinishMigration): whatever
// breaks on the way, two guests never run. A migration that fails before that leaves the guest on the source.
//
// Concurrency: all state is behind one mutex that is never held during a call to libvirt. Run waits for all
// goroutines: one connects and follows the events, one polls what has no events (the refresher), one watches
// libvirtd, one each runs the start, the stop, a backup and a migration, some handle a single event, and the freezer
// has its own.
package launcher
