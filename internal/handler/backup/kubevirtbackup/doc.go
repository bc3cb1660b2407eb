// Package kubevirtbackup is the node's half of a VirtualMachineBackup: the phases Starting, Copying, Serving and
// Pruning of the state machine in docs/architecture.md.
//
//	Starting   validate the trackers' checkpoints, plan each disk, tell the launcher to begin; mirror its progress
//	Copying    mirror its progress until it ends: Copied or CopyFailed
//	Serving    tell the launcher who reads the backup; when it is deleted, finish or abort it
//	Pruning    delete checkpoints that no tracker names and the partial files; Pruned
//
// What to do with a backup follows from the object on the API server and from what the launcher reports about the
// job with the object's UID. So a handler that restarts at any line continues where the last one stopped: if the
// job was begun, the handler finds it by its UID, and otherwise begins it. The launcher's client is locked from the
// decision to begin until the launcher has answered, so that nobody deletes the checkpoint that the plan relies on.
//
// Nothing here moves a tracker forward. The controller does that, after Copied.
package kubevirtbackup
