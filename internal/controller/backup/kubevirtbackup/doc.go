// Package kubevirtbackup is the cluster's half of a VirtualMachineBackup's life. It waits for what a backup needs, attaches
// the target, takes the lock on the guest, moves the tracker once the data is durable, and cleans up. The node's
// half (Starting, Copying, Pruning) belongs to the handler. docs/architecture.md has the whole state machine.
//
// decide is a pure function from everything that was read to ONE step: one write of one object. The reconciler
// applies it with optimistic concurrency, then reads and decides again, so it may be killed after any write.
//
// Invariants, checked by the property test:
//   - Done is reached only through Copied.
//   - A tracker moves only after Copied, only if it is the object that the backup was planned with, and only if it
//     still has the checkpoint that it had then (or none, if the node discarded it).
//   - The lock on an instance is taken only when everything else is ready, and a backup does not end while it holds
//     the lock, unless the API server refuses to unlock until the deadline.
//   - A checkpoint's name is given out only once.
//   - Every wait has a deadline, which is in status.phaseDeadline.
//
// A node copies for a limited number of backups at a time. A backup takes a place on the instance's node when it
// goes from Pending to Attaching, before anything is attached or locked. It gives the place back when the copy has
// ended. The others wait in Pending with NodeBusy, oldest first. A place that this process granted counts even
// before the cache shows it. After a change of leader, the limit may be exceeded by as many backups as the new
// leader's cache does not show yet.
//
// If the API server refuses a step, because of a policy, a quota or a webhook that is down, status quotes the
// refusal (RequestRefused). The step is retried until the phase's deadline, which decide checks before it asks for
// the step again. In the phases whose reason is that of the backup's end, an event reports the refusal instead. A
// volume that cannot be detached does not keep the machine locked.
//
// A deletion that arrives when the data is already durable (Copied) is too late to abort: the backup completes, and
// the object goes then. An earlier deletion fails the backup with reason Aborted.
//
// Two more controllers take care of what a backup leaves behind if its finalizer is removed by hand. One releases
// the locks and detaches the utility volumes of backups that do not exist. The other holds and releases the
// trackers' finalizer.
//
// Reads come from the cache. A decision that leads to a write is made again on live reads. The controller of
// backups runs one worker.
package kubevirtbackup
