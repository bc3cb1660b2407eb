// Package backup is the node's half of a VirtualMachineBackup: the phases Starting, Copying and Pruning of the state
// machine in docs/architecture.md.
//
//	Starting   validate the trackers' checkpoints, plan each disk, tell the launcher to begin; mirror its progress
//	Copying    mirror its progress until it ends: Copied or CopyFailed
//	Pruning    delete checkpoints that no tracker names and the partial files; Pruned
//
// What is done with a backup follows from the object, as the API server has it, and from what the launcher reports of the
// job with the object's UID. A handler that restarts at any line therefore goes on where the last one stopped: a job
// that was begun is found by its UID, and one that was not is begun. The launcher's link is locked from the
// decision to begin until the launcher has answered, so that nobody deletes the checkpoint that the plan relies on.
//
// Nothing here moves a tracker forward: that is the controller's, after Copied.
package backup
