// Package instance is the node's half of a VirtualMachineInstance, from Scheduled on: it starts the guest, mirrors what
// its launcher reports into status, mounts and unmounts utility volumes, keeps checkpoints and trackers in agreement, and
// stops the guest when the instance is deleted.
//
// Decisions are pure: [decide] says what to ask of the launcher, [project] what status becomes. They follow from the
// object, the launcher's last state and, for a stop, the backup that holds the instance; a handler that restarts decides
// the same again. Status is written with optimistic concurrency, so that a decision on an old object does not overwrite
// what the controller wrote; only the fields that docs/architecture.md gives to the handler are changed.
//
// The final phases are the controller's: it sees the pod. After one the handler only unmounts.
package instance
