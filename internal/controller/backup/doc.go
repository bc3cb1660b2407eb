// Package backup is the cluster's half of a VirtualMachineBackup's life: it waits for what a backup needs, attaches
// the target, takes the lock on the guest, moves the tracker after the data is durable, and cleans up. The node's
// half (Starting, Copying, Pruning) belongs to the handler; docs/architecture.md has the whole state machine.
//
// decide is a pure function from everything that was read to ONE step: one write of one object. The reconciler
// applies it with optimistic concurrency, reads again and decides again, so that it may be killed after any write.
//
// Invariants, held by the property test:
//   - Done is reached only through Copied.
//   - A tracker moves only after Copied, only if it is the object that the backup was planned with, and only if it
//     still has the checkpoint of then (or none, when the node discarded it).
//   - The lock on an instance is taken after everything else is there, and a backup does not end while it holds it.
//   - A checkpoint's name is given out once.
//   - Every wait has a deadline, which stands in status.phaseDeadline.
//
// A node copies for a bounded number of backups at a time. A backup takes a place on the instance's node when it goes from Pending to Attaching, before
// anything is attached or locked, and gives it back when the copy has ended; the others wait in Pending with NodeBusy, the oldest first. What
// this process granted counts before the cache shows it. After a change of the leader the limit may be exceeded by what the new one's cache does not show.
//
// A step that the API server refuses, by a policy, a quota or a webhook that is down, is shown with its words (RequestRefused) and tried again until
// the phase's deadline, which decide looks at before it asks for the step again. In the phases whose reason is that of the backup's end an event tells of it. A
// volume that cannot be detached does not keep the machine locked.
//
// A deletion that comes when the data is already durable (Copied) is too late to abort: the backup completes, and the
// object goes then. Before that it fails the backup with reason Aborted.
//
// Two more controllers keep what a backup leaves behind when its finalizer was removed by hand: one releases locks
// and detaches utility volumes of backups that do not exist, the other holds and releases the trackers' finalizer.
//
// Reads come from the cache; a decision that would write is taken again on live reads. One worker runs.
package backup
