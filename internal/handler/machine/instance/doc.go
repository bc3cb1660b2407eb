// Package instance is the node's half of a VirtualMachineInstance, from Scheduled on. It starts the guest, mirrors
// what the launcher reports into status, mounts and unmounts utility volumes, keeps checkpoints and trackers in
// agreement, and stops the guest when the instance is deleted.
//
// Decisions are pure: [decide] says what to ask of the launcher, and [project] computes the new status. They follow
// from the object, the launcher's last state and the instance's backups, so a handler that restarts makes the same
// decisions again. Status is written with optimistic concurrency, so that a decision on an old object does not
// overwrite what the controller wrote. Only the fields that docs/architecture.md assigns to the handler are
// changed.
//
// The final phases belong to the controller, which sees the pod. After a final phase the handler only unmounts.
package instance
