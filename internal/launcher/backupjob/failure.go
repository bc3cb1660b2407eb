package backupjob

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
)

// Failure says why a backup failed: an error with its class on the wire.
type Failure struct { //nolint:errname // its name on the wire
	Kind pb.Backup_Failure
	// Message says what failed and what to do.
	Message string
	// Lost are the volumes whose base is unusable. It is set with BASE_LOST.
	Lost []string
}

func (f *Failure) Error() string { return f.Message }

// applyTo writes the failure into a backup's state.
func (f *Failure) applyTo(b *pb.Backup) {
	b.Phase, b.Failure, b.Message = pb.Backup_FAILED, f.Kind, f.Message
	for _, v := range b.Volumes {
		v.BaseLost = slices.Contains(f.Lost, v.Volume)
		v.File, v.Sha256 = "", ""
	}
}

// Aborted is the failure of a backup that somebody aborted.
func Aborted() *Failure {
	return &Failure{Kind: pb.Backup_ABORTED, Message: "the backup was aborted"}
}

// Stopped is the failure of a backup whose guest is being stopped.
func Stopped() *Failure {
	return &Failure{Kind: pb.Backup_STOPPED, Message: "the virtual machine is being stopped"}
}

// guestFailure returns the failure of a backup whose guest has ended.
func guestFailure(end GuestEnd) *Failure {
	if end == GuestShutDown {
		return &Failure{Kind: pb.Backup_GUEST_SHUTDOWN, Message: "the guest shut down during the backup"}
	}
	return &Failure{Kind: pb.Backup_GUEST_CRASHED, Message: "the guest crashed during the backup"}
}

// baseLost is the failure of a backup of which the wanted disks are incremental, and the base of the lost ones is unusable.
func baseLost(lost, wanted []string, err error) *Failure {
	if len(lost) == 0 {
		lost = wanted // libvirt names no disk, so none of them can be relied on
	}
	f := &Failure{Kind: pb.Backup_BASE_LOST, Lost: lost}
	f.Message = fmt.Sprintf("the bitmap of %s is unusable and needs a full backup", strings.Join(lost, ", "))
	if err != nil {
		f.Message += ": " + err.Error()
	}
	return f
}

// pausedError says that the guest was paused while the backup ran.
type pausedError struct{ disk, why string }

func (e *pausedError) Error() string {
	if e.disk == "" {
		return "the guest was paused by an I/O error"
	}
	return fmt.Sprintf("the guest was paused by an I/O error on disk %s (%s)", e.disk, e.why)
}

// classifyFailure derives the failure from an error and what is known. A cause from outside comes first, because everything
// that fails afterwards follows from it. Then comes the guest's end, which fails libvirt's job with many different
// messages. What the mode makes of the error comes last.
func classifyFailure(err, cause error, guest GuestEnd, explain func(error) *Failure) *Failure {
	var f *Failure
	switch {
	case errors.As(cause, &f):
		return f
	case guest != GuestLives:
		return guestFailure(guest)
	case errors.As(err, &f):
		return f
	}
	if f = explain(err); f != nil {
		return f
	}
	return &Failure{Kind: pb.Backup_HYPERVISOR_ERROR, Message: err.Error()}
}
