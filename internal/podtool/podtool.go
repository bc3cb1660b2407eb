// Package podtool has the small jobs that pods give to the varve binary: holding a pod open, installing the binary where
// a container of another image finds it, and copying a kernel out of an image. Each can be repeated. A copy appears
// whole, or not at all.
package podtool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/varvebackup/varve/internal/durable"
)

// Hold tells out that it holds, and returns when ctx ends. It is the main container of a pod that only keeps volumes on a
// node.
func Hold(ctx context.Context, out io.Writer) error {
	if _, err := fmt.Fprintln(out, "Holding this pod's volumes until told to stop."); err != nil {
		return fmt.Errorf("tell that this pod is held: %w", err)
	}
	<-ctx.Done()
	return nil
}

// InstallSelf copies the running program to dir/varve, executable by everybody.
func InstallSelf(dir string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	return copyFile(self, filepath.Join(dir, "varve"), 0o755)
}

// KernelBootCopy copies a kernel and an initial RAM disk to dir/kernel and dir/initrd. It skips one whose path is
// empty.
func KernelBootCopy(kernel, initrd, dir string) error {
	if kernel == "" && initrd == "" {
		return errors.New("name a kernel, an initrd or both")
	}
	for _, c := range []struct{ what, from, to string }{{"kernelPath", kernel, "kernel"}, {"initrdPath", initrd, "initrd"}} {
		if c.from == "" {
			continue
		}
		err := copyFile(c.from, filepath.Join(dir, c.to), 0o644)
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("the image of firmware.kernelBoot has no file %s: correct %s: %w", c.from, c.what, err)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", c.what, err)
		}
	}
	return nil
}

// copyFile makes to a durable copy of the regular file from. It writes to a temporary name first, so that to is never
// incomplete.
func copyFile(from, to string, mode fs.FileMode) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	if info, err := in.Stat(); err != nil {
		return fmt.Errorf("copy: %w", err)
	} else if !info.Mode().IsRegular() {
		return fmt.Errorf("copy %s: not a regular file", from)
	}
	dir := filepath.Dir(to)
	out, err := os.CreateTemp(dir, "."+filepath.Base(to)+"-")
	if err != nil {
		return fmt.Errorf("copy to %s: %w", dir, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(out.Name()))
		}
	}()
	_, err = io.Copy(out, in)
	if err = errors.Join(err, out.Chmod(mode), out.Sync(), out.Close()); err != nil {
		return fmt.Errorf("copy %s to %s: %w", from, to, err)
	}
	if err = os.Rename(out.Name(), to); err != nil {
		return fmt.Errorf("copy %s: %w", from, err)
	}
	if err = durable.Sync(dir); err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}
