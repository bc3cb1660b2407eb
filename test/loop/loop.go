// Package loop creates block devices for tests that may make them.
package loop

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// Device attaches a block device to a file and returns the device's path. It is detached when the test, or the process, ends.
func Device(tb testing.TB, file string) string {
	tb.Helper()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = control.Close() }() // only used for ioctls
	backing, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = backing.Close() }() // the device has its own reference
	for {
		number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			tb.Fatal(err)
		}
		path := fmt.Sprintf("/dev/loop%d", number)
		device, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			tb.Fatal(err)
		}
		config := unix.LoopConfig{Fd: uint32(backing.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR}}
		err = unix.IoctlLoopConfigure(int(device.Fd()), &config)
		if errors.Is(err, unix.EBUSY) { // another process was faster
			_ = device.Close()
			continue
		}
		if err != nil {
			tb.Fatal(err)
		}
		give(tb, path)
		tb.Cleanup(func() {
			if err := device.Close(); err != nil {
				tb.Error(err)
			}
		})
		return path
	}
}

// give makes the process's user the owner of a device for the time of the test, as a container's runtime makes the
// container's user.
func give(tb testing.TB, path string) {
	tb.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if err := os.Chown(path, os.Geteuid(), os.Getegid()); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := os.Chown(path, 0, 0); err != nil {
			tb.Error(err)
		}
	})
}

// Resize gives a device the current size of its file.
func Resize(tb testing.TB, path string) {
	tb.Helper()
	device, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = device.Close() }() // only used for ioctls
	if err := unix.IoctlSetInt(int(device.Fd()), unix.LOOP_SET_CAPACITY, 0); err != nil {
		tb.Fatal(err)
	}
}
