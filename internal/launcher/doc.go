// Package launcher runs one guest in one pod: it serves launcher.proto to the node's handler and drives the guest's
// domain through a small interface, Guest, that domain.Session satisfies.
//
// The life of a guest is one pure state machine (life); everything that happens to the guest is given to it and its phase is what
// Watch sends. A launcher starts one guest once: when the guest has ended, the launcher waits until its handler has seen that (Exit, or 10
// seconds) and ends too, with exit code 0 after any shutdown and 1 after a crash or a failed start.
//
// When libvirtd dies, or the connection to it, nobody can say any more what the guest does, and its backups, its checkpoints and
// its shutdown are out of reach. The launcher then ends QEMU with SIGTERM, on which it closes its disks properly, and counts the guest as crashed.
//
// Concurrency: all state is behind one mutex that is never held during a call to libvirt. Run's goroutines are: one for events, one that
// reads again what has no events (the refresher), one for a stop, one for a backup, and the freezer's. They end before Run returns.
package launcher
