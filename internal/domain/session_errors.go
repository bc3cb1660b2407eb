//go:build libvirt_dlopen

package domain

import (
	"errors"
	"fmt"

	"libvirt.org/go/libvirt"

	"github.com/varvebackup/varve/internal/errclass"
)

// classes maps libvirt's codes to this package's classes. An error with any other code has no class.
var classes = map[libvirt.ErrorNumber]error{
	libvirt.ERR_NO_DOMAIN:               errclass.NotFound,
	libvirt.ERR_NO_DOMAIN_BACKUP:        errclass.NotFound,
	libvirt.ERR_NO_DOMAIN_CHECKPOINT:    ErrCheckpointLost,
	libvirt.ERR_CHECKPOINT_INCONSISTENT: ErrCheckpointLost,
	libvirt.ERR_OPERATION_INVALID:       ErrNotRunning,
	libvirt.ERR_OPERATION_TIMEOUT:       ErrBusy,
	libvirt.ERR_AGENT_UNRESPONSIVE:      ErrAgent,
	libvirt.ERR_AGENT_UNSYNCED:          ErrAgent,
	libvirt.ERR_AGENT_COMMAND_TIMEOUT:   ErrAgent,
	libvirt.ERR_AGENT_COMMAND_FAILED:    ErrAgent,
	libvirt.ERR_NO_CONNECT:              ErrClosed,
	libvirt.ERR_INVALID_CONN:            ErrClosed,
	libvirt.ERR_RPC:                     ErrClosed,
}

// errorNumber returns libvirt's code of an error, or ERR_OK.
func errorNumber(err error) libvirt.ErrorNumber {
	var e libvirt.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return libvirt.ERR_OK
}

// translateError wraps an error of libvirt in one of this package's classes.
func translateError(err error) error {
	if class, ok := classes[errorNumber(err)]; ok && !errors.Is(err, class) {
		return fmt.Errorf("%w: %w", class, err)
	}
	return err
}
