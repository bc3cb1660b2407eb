package loop

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/errclass"
)

// Resize gives a device the size that its file has now, while it is in use. An error is of class NotFound if the device
// is detached, or has another file by now.
func (d Devices) Resize(device Device) error {
	if err := d.resizeDevice(device); err != nil {
		return fmt.Errorf("resize %s of %s: %w", device.Path, device.Name, err)
	}
	return nil
}

func (d Devices) resizeDevice(device Device) (err error) {
	f, err := os.OpenFile(device.Path, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	there, err := d.readOpen(f, device.number)
	if err == nil && !there.hasFileOf(device) {
		err = errclass.Errorf(errclass.NotFound, "it has another file now")
	}
	if err != nil {
		return err
	}
	return unix.IoctlSetInt(int(f.Fd()), unix.LOOP_SET_CAPACITY, 0)
}
