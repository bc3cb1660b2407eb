// Package libvirtd says how libvirtd runs in a launcher pod: as an ordinary user, with all its files in the launcher's private
// directory.
package libvirtd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/varvebackup/varve/internal/layout"
)

// driverConfig is the configuration of libvirt's QEMU driver in the image.
const driverConfig = "/etc/libvirt/qemu.conf"

// Environment returns the environment of a libvirtd that runs as an ordinary user. It keeps all its files below
// layout.PrivateDir, because the root file system is read-only. It runs in the C locale, because errors are recognized
// by their text.
func Environment() []string {
	return []string{
		"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", "HOME=" + layout.PrivateDir, "TMPDIR=" + layout.PrivateDir,
		"XDG_CONFIG_HOME=" + layout.LibvirtConfigDir, "XDG_CACHE_HOME=" + layout.LibvirtCacheDir, "XDG_RUNTIME_DIR=" + layout.LibvirtRunDir,
	}
}

// Prepare makes the directories in which libvirtd keeps its files. An ordinary user's libvirtd looks for its
// driver's configuration there as well, and silently does without one that it cannot read: that is an error here.
func Prepare() error {
	config := filepath.Join(layout.LibvirtConfigDir, "libvirt")
	for _, dir := range []string{config, layout.LibvirtCacheDir, layout.LibvirtRunDir} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("prepare libvirtd: %w", err)
		}
	}
	link := filepath.Join(config, filepath.Base(driverConfig))
	if err := os.Symlink(driverConfig, link); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("prepare libvirtd: %w", err)
	}
	if _, err := os.ReadFile(link); err != nil {
		return fmt.Errorf("prepare libvirtd: read the driver's configuration: %w", err)
	}
	return nil
}

// EmulatorPIDs is the directory where libvirt keeps the process IDs of emulators.
const EmulatorPIDs = layout.LibvirtRunDir + "/libvirt/qemu/run"
