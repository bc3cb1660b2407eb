package domain

import (
	"errors"

	"github.com/varvebackup/varve/internal/errclass"
)

// Errors have the classes of errclass: Invalid for a request that is not possible for this instance or disk, NotFound for
// a domain or a backup job that does not exist, Exhausted for a full file system. These are the errors that a caller
// answers in a way of its own.
var (
	// ErrCheckpointLost is of class Expired: a checkpoint's bitmap is missing, inconsistent or unknown; the disk needs a full backup.
	ErrCheckpointLost = errclass.New(errclass.Expired, "checkpoint lost")
	// ErrNotRunning is of class Conflict: the domain is not running.
	ErrNotRunning = errclass.New(errclass.Conflict, "domain is not running")
	// ErrBusy is of class Transient: another job (a backup, above all) holds the domain.
	ErrBusy = errclass.New(errclass.Transient, "domain is busy")
	// ErrAgent: the guest agent is missing, did not answer in time or refused.
	ErrAgent = errors.New("guest agent failed")
	// ErrClosed is of class Transient: the connection to libvirtd is gone; connect again.
	ErrClosed = errclass.New(errclass.Transient, "connection to libvirt is closed")
)
