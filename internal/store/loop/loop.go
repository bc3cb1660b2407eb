// Package loop attaches files to loop devices, finds the device of a file again, and detaches it.
//
// The kernel knows a device's file by device and inode number, so a file is found across mount namespaces, renames and
// restarts of the process. Devices outlive the process. Each has a name, by which it is found if its file is out of
// reach. If the file's disk is dead, the kernel no longer tells the name or the inode: the name is then that of the
// file's directory, which the kernel still shows. So attach a file under the name of its directory.
package loop

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"

	"github.com/varvebackup/varve/internal/errclass"
)

// Sizes of a device's sectors, in bytes. The kernel hides the rest of a file that is not a multiple of them.
const (
	// SmallSector is what every program and every file system can use. XFS wants direct I/O to shared blocks aligned to
	// its own blocks, so the device of a clone goes through the page cache with it.
	SmallSector = 512
	// BlockSector is as large as the blocks of the file systems below, so that a device does direct I/O always. A file
	// system with smaller blocks or sectors cannot be mounted from it. QEMU shows its guests sectors of 512 bytes all the
	// same.
	BlockSector = 4096
)

// MaxNameBytes is the length of a device's longest name.
const MaxNameBytes = unix.LO_NAME_SIZE - 1

// pollInterval is how often a device is looked at that is to be detached.
const pollInterval = 5 * time.Millisecond

// Devices are the node's loop devices.
type Devices struct {
	// Dir has the device files, as /dev does. The kernel makes new ones only in a devtmpfs, not in a container's /dev.
	Dir   string
	Clock clock.WithTicker
}

// Device is an attached loop device.
type Device struct {
	Path   string // such as /dev/loop7
	Name   string // what Attach was told, or the path that another program gave, or the name of the file's directory
	number string // such as loop7
	file   fileKey
	dead   bool // the kernel cannot read the file any more, so that file is not known
}

// hasFileOf reports whether a device has the same file as another one with its number.
func (d Device) hasFileOf(other Device) bool {
	if d.dead || other.dead {
		return d.Name == other.Name
	}
	return d.file == other.file
}

// fileKey identifies a file.
type fileKey struct{ device, inode uint64 }

// Attach returns the device of a file, and attaches a free one under a name of 1 to MaxNameBytes bytes if the file has
// none. Its sectors have sectorBytes, which is one of the sizes above, or SmallSector if the file's size is not a
// multiple of that. The device uses direct I/O where the file's file system can with such sectors, and passes discards
// on. An error is of class Invalid if the file's size is not a multiple of 512 bytes.
func (d Devices) Attach(ctx context.Context, file, name string, sectorBytes int) (Device, error) {
	device, err := d.attachFile(ctx, file, name, sectorBytes)
	if err != nil {
		return Device{}, fmt.Errorf("attach %s to a loop device: %w", file, err)
	}
	return device, nil
}

func (d Devices) attachFile(ctx context.Context, file, name string, sectorBytes int) (Device, error) {
	if name == "" || len(name) > MaxNameBytes {
		return Device{}, errclass.Errorf(errclass.Invalid, "the name %q has %d bytes: use 1 to %d", name, len(name),
			MaxNameBytes)
	}
	if there, err := d.Find(file); !errors.Is(err, errclass.NotFound) {
		return there, err
	}
	backing, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return Device{}, err
	}
	defer backing.Close() //nolint:errcheck // the device holds the file from here on
	info, err := backing.Stat()
	if err != nil {
		return Device{}, err
	}
	if info.Size()%int64(sectorBytes) != 0 {
		sectorBytes = SmallSector
	}
	if info.Size()%SmallSector != 0 {
		return Device{}, errclass.Errorf(errclass.Invalid, "its size of %d bytes is not a multiple of %d", info.Size(),
			SmallSector)
	}
	for {
		path, err := d.takeFree()
		if err != nil {
			return Device{}, err
		}
		err = configureDevice(path, backing, name, sectorBytes)
		if errors.Is(err, unix.EBUSY) { // another process was faster
			if err := ctx.Err(); err != nil {
				return Device{}, err
			}
			continue
		}
		if err != nil {
			return Device{}, fmt.Errorf("configure %s: %w", path, err)
		}
		return d.Find(file)
	}
}

// takeFree returns the path of a device that is free at the moment.
func (d Devices) takeFree() (string, error) {
	control, err := os.OpenFile(filepath.Join(d.Dir, "loop-control"), os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer control.Close() //nolint:errcheck // a control device holds no data
	n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
	if err != nil {
		return "", fmt.Errorf("ask for a free loop device: %w", err)
	}
	return filepath.Join(d.Dir, fmt.Sprintf("loop%d", n)), nil
}

func configureDevice(path string, backing *os.File, name string, sectorBytes int) error {
	device, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer device.Close() //nolint:errcheck // nothing was written
	// Direct I/O keeps the file out of the page cache, which has the device's data already. Where the file system
	// cannot, the kernel ignores the flag.
	config := unix.LoopConfig{
		Fd: uint32(backing.Fd()), Size: uint32(sectorBytes),
		Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_DIRECT_IO},
	}
	copy(config.Info.File_name[:MaxNameBytes], name)
	return unix.IoctlLoopConfigure(int(device.Fd()), &config)
}

// Find returns the device of a file. An error is of class NotFound if the file has none.
func (d Devices) Find(file string) (Device, error) {
	key, err := identifyFile(file)
	if err != nil {
		return Device{}, fmt.Errorf("find the loop device of %s: %w", file, err)
	}
	found, err := d.list(func(device Device) bool { return !device.dead && device.file == key })
	if err != nil {
		return Device{}, fmt.Errorf("find the loop device of %s: %w", file, err)
	}
	if len(found) == 0 {
		return Device{}, errclass.Errorf(errclass.NotFound, "%s has no loop device", file)
	}
	return found[0], nil
}

// FindName returns the device with a name. An error is of class NotFound if no device has it.
func (d Devices) FindName(name string) (Device, error) {
	found, err := d.list(func(device Device) bool { return device.Name == name })
	if err != nil {
		return Device{}, fmt.Errorf("find the loop device %q: %w", name, err)
	}
	if len(found) == 0 {
		return Device{}, errclass.Errorf(errclass.NotFound, "no loop device has the name %q", name)
	}
	return found[0], nil
}

// Below returns the devices of files below a directory.
func (d Devices) Below(dir string) ([]Device, error) {
	files := map[fileKey]bool{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return skipMissing(err)
		}
		key, err := identifyFile(path)
		if err == nil {
			files[key] = true
		}
		return skipMissing(err)
	})
	var found []Device
	if err == nil {
		found, err = d.list(func(device Device) bool { return !device.dead && files[device.file] })
	}
	if err != nil {
		return nil, fmt.Errorf("list the loop devices of files below %s: %w", dir, err)
	}
	return found, nil
}

// Detach detaches a device from its file, and waits until the kernel has done it, which is when the last user has
// closed the device. A device that has another file by now, or none, is no error. If ctx ends first, the error is of
// class Transient, and the kernel still detaches the device when its last user closes it.
func (d Devices) Detach(ctx context.Context, device Device) error {
	err := d.clearDevice(device)
	if err != nil {
		return fmt.Errorf("detach %s from %s: %w", device.Path, device.Name, err)
	}
	ticker := d.Clock.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		there, err := d.read(device.number)
		if errors.Is(err, errclass.NotFound) || (err == nil && !there.hasFileOf(device)) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("detach %s from %s: %w", device.Path, device.Name, err)
		}
		select {
		case <-ctx.Done():
			return errclass.Errorf(errclass.Transient, "detach %s from %s: another program has the device open: end it",
				device.Path,
				device.Name)
		case <-ticker.C():
		}
	}
}

// clearDevice tells the kernel to detach a device if it still has its file.
func (d Devices) clearDevice(device Device) error {
	f, err := os.OpenFile(device.Path, os.O_RDONLY, 0)
	if err != nil {
		return skipGone(err)
	}
	defer f.Close() //nolint:errcheck // nothing was written
	there, err := d.readOpen(f, device.number)
	if errors.Is(err, errclass.NotFound) {
		return nil
	}
	if err == nil && there.hasFileOf(device) {
		err = unix.IoctlSetInt(int(f.Fd()), unix.LOOP_CLR_FD, 0)
	}
	return skipGone(err)
}

// list returns the attached devices that are chosen.
func (d Devices) list(chosen func(Device) bool) ([]Device, error) {
	entries, err := os.ReadDir("/sys/block")
	if err != nil {
		return nil, err
	}
	var found []Device
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "loop") {
			continue
		}
		device, err := d.read(e.Name())
		switch {
		case errors.Is(err, errclass.NotFound):
		case err != nil:
			return nil, err
		case chosen(device):
			found = append(found, device)
		}
	}
	return found, nil
}

// read returns an attached device. An error is of class NotFound if the device is not attached.
func (d Devices) read(number string) (Device, error) {
	if _, err := os.Stat(filepath.Join("/sys/block", number, "loop")); errors.Is(err, fs.ErrNotExist) {
		return Device{}, errNotAttached(number)
	}
	f, err := os.OpenFile(filepath.Join(d.Dir, number), os.O_RDONLY, 0)
	if err != nil {
		if skipGone(err) == nil {
			return Device{}, errNotAttached(number)
		}
		return Device{}, err
	}
	defer f.Close() //nolint:errcheck // nothing was written
	return d.readOpen(f, number)
}

// readOpen is read for a device that is open.
func (d Devices) readOpen(f *os.File, number string) (Device, error) {
	device := Device{Path: filepath.Join(d.Dir, number), number: number}
	info, err := unix.IoctlLoopGetStatus64(int(f.Fd()))
	if err == nil {
		device.Name, _, _ = strings.Cut(string(info.File_name[:]), "\x00")
		device.file = fileKey{info.Device, info.Inode}
		return device, nil
	}
	if skipGone(err) == nil {
		return Device{}, errNotAttached(number)
	}
	// The kernel asks the file's disk, which is dead: one disk must not hide the devices of all others.
	backing, sysErr := os.ReadFile(filepath.Join("/sys/block", number, "loop/backing_file"))
	if errors.Is(sysErr, fs.ErrNotExist) {
		return Device{}, errNotAttached(number)
	}
	if sysErr != nil {
		return Device{}, fmt.Errorf("read %s: %w", device.Path, errors.Join(err, sysErr))
	}
	device.Name, device.dead = filepath.Base(filepath.Dir(strings.TrimSpace(string(backing)))), true
	return device, nil
}

func errNotAttached(number string) error {
	return errclass.Errorf(errclass.NotFound, "%s is not attached", number)
}

func identifyFile(path string) (fileKey, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return fileKey{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return fileKey{st.Dev, st.Ino}, nil
}

// skipGone drops the errors of a device that is detached meanwhile.
func skipGone(err error) error {
	if errors.Is(err, unix.ENXIO) {
		return nil
	}
	return err
}

func skipMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
