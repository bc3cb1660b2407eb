package guest

import (
	"bufio"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/varvebackup/varve/images/internal/command"
)

// libraryDirs are the directories in which Debian keeps shared libraries.
var libraryDirs = []string{"usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/lib"}

// loader is the program interpreter of all dynamically linked programs.
const loader = "usr/lib64/ld-linux-x86-64.so.2"

// initramfs collects the files of an initramfs. The errors of its methods name the file.
type initramfs struct {
	packages string // Directory of the unpacked packages that files are taken from.
	entries  map[string]cpioEntry
}

// newInitramfs returns an initramfs with the usual directories; bin, sbin and usr/sbin are all usr/bin.
func newInitramfs(packages string) *initramfs {
	i := &initramfs{packages: packages, entries: map[string]cpioEntry{}}
	for _, dir := range []string{"dev", "proc", "sys", "run", "tmp", "etc", "usr/bin", "usr/lib", "usr/lib64", "var/log", "disks"} {
		i.addDirectory(dir)
	}
	for link, target := range map[string]string{
		"bin": "usr/bin", "sbin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64", "usr/sbin": "bin", "var/run": "../run",
	} {
		i.addSymlink(link, target)
	}
	return i
}

// addDirectory adds a directory and its parents.
func (i *initramfs) addDirectory(name string) {
	for ; name != "."; name = filepath.Dir(name) {
		i.entries[name] = cpioEntry{name: name, mode: cpioDir | 0o755}
	}
}

func (i *initramfs) addSymlink(name, target string) {
	i.addDirectory(filepath.Dir(name))
	i.entries[name] = cpioEntry{name: name, mode: cpioSymlink | 0o777, content: []byte(target)}
}

// setFile adds a regular file. It replaces any entry of that name.
func (i *initramfs) setFile(name string, perm fs.FileMode, content []byte) {
	i.addDirectory(filepath.Dir(name))
	i.entries[name] = cpioEntry{name: name, mode: cpioFile | uint32(perm.Perm()), content: content}
}

// addBusybox adds busybox and a link for each of its applets.
func (i *initramfs) addBusybox(ctx context.Context) error {
	path := filepath.Join(i.packages, "usr/bin/busybox")
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	i.setFile("usr/bin/busybox", 0o755, content)
	applets, err := command.Run(ctx, nil, path, "--list")
	if err != nil {
		return err
	}
	for _, applet := range strings.Fields(string(applets)) {
		if applet != "busybox" {
			i.addSymlink("usr/bin/"+applet, "busybox")
		}
	}
	return nil
}

// addProgram adds a program of the packages to usr/bin, with the libraries that it is linked against and theirs.
func (i *initramfs) addProgram(name string) error {
	content, err := os.ReadFile(filepath.Join(i.packages, name))
	if err != nil {
		return fmt.Errorf("program %s: %w", name, err)
	}
	i.setFile("usr/bin/"+filepath.Base(name), 0o755, content)
	if err := i.addLibraries(name); err != nil {
		return fmt.Errorf("program %s: %w", name, err)
	}
	// Debian's loader is a symbolic link into the library directory.
	real, err := os.ReadFile(filepath.Join(i.packages, loader))
	if err != nil {
		return err
	}
	i.setFile(loader, 0o755, real)
	return nil
}

// addLibraries adds all libraries that the ELF file needs, and those that they need.
func (i *initramfs) addLibraries(name string) error {
	f, err := elf.Open(filepath.Join(i.packages, name))
	if err != nil {
		return err
	}
	needed, err := f.ImportedLibraries()
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	for _, lib := range needed {
		path, content, err := i.findLibrary(lib)
		if err != nil {
			return err
		}
		if _, have := i.entries[path]; have {
			continue
		}
		i.setFile(path, 0o755, content)
		if err := i.addLibraries(path); err != nil {
			return err
		}
	}
	return nil
}

func (i *initramfs) findLibrary(lib string) (path string, content []byte, err error) {
	for _, dir := range libraryDirs {
		path := filepath.Join(dir, lib)
		content, err := os.ReadFile(filepath.Join(i.packages, path))
		if err == nil {
			return path, content, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", nil, err
		}
	}
	return "", nil, fmt.Errorf("library %s is in none of the packages", lib)
}

// addFile adds a file of the packages under its own name.
func (i *initramfs) addFile(name string) error {
	content, err := os.ReadFile(filepath.Join(i.packages, name))
	if err != nil {
		return err
	}
	i.setFile(name, 0o644, content)
	return nil
}

// addTree adds all files below dir. They replace existing entries.
func (i *initramfs) addTree(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		perm := fs.FileMode(0o644)
		if info.Mode()&0o100 != 0 {
			perm = 0o755
		}
		i.setFile(name, perm, content)
		return nil
	})
}

// writeTo writes the archive uncompressed: under emulation unpacking takes longer than loading.
func (i *initramfs) writeTo(path string) error {
	if err := i.writeFile(path); err != nil {
		return err
	}
	return padChecksum(path)
}

func (i *initramfs) writeFile(path string) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := bufio.NewWriter(f)
	if err := writeCpio(w, i.entries); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return w.Flush()
}
