package domain

import "errors"

// The classes of errors. Every error of this package that a caller can act on wraps one of them.
var (
	// ErrNotFound: no such domain or backup job.
	ErrNotFound = errors.New("not found")
	// ErrCheckpointLost: a checkpoint's bitmap is missing, inconsistent or unknown; the disk needs a full backup.
	ErrCheckpointLost = errors.New("checkpoint lost")
	// ErrNotRunning: the domain is not running.
	ErrNotRunning = errors.New("domain is not running")
	// ErrBusy: another job (a backup, above all) holds the domain.
	ErrBusy = errors.New("domain is busy")
	// ErrNoSpace: a file system that the job writes to is full.
	ErrNoSpace = errors.New("no space left")
	// ErrAgent: the guest agent is missing, did not answer in time or refused.
	ErrAgent = errors.New("guest agent failed")
	// ErrClosed: the connection to libvirtd is gone; connect again.
	ErrClosed = errors.New("connection to libvirt is closed")
	// ErrInvalid: the request is not possible for this instance or disk; the message says what to fix.
	ErrInvalid = errors.New("invalid")
)
