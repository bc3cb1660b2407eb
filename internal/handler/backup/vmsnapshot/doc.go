// Package vmsnapshot is the node's half of a VirtualMachineSnapshot: it freezes and thaws the guest when the controller asks
// for that in status.quiesce.request, and writes status.quiesce.state and message.
//
//	Freeze   Frozen: the guest is frozen. NotFrozen: it is not; the message says why
//	Thaw     Thawed: it was frozen until now. ThawedEarly: it may not have been. NotFrozen: it was not frozen in time
//
// The snapshot's UID is the owner of the freeze in the launcher, which gives an owner the same answer again. So a handler
// that restarts at any line, or loses an answer, asks once more, and never says that a guest is frozen whose freeze is
// over. The launcher ends a freeze by itself after 30 seconds, or after what the annotation varvebackup.io/freeze-deadline
// says, whether or not there is a handler.
package vmsnapshot
