package guest

import (
	"fmt"
	"io"
	"maps"
	"slices"
)

// File types in the mode of a cpio entry, as in stat(2).
const (
	cpioDir     = 0o040000
	cpioFile    = 0o100000
	cpioSymlink = 0o120000
)

// cpioEntry is one file of an archive. The content of a symbolic link is its target.
type cpioEntry struct {
	name    string
	mode    uint32
	content []byte
}

// writeCpio writes entries in the "newc" format (the kernel's
// Documentation/driver-api/early-userspace/buffer-format), sorted by name, which puts directories before their
// content. Owners and times are zero.
func writeCpio(w io.Writer, entries map[string]cpioEntry) error {
	inode := 1
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		if err := writeCpioEntry(w, inode, entries[name]); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		inode++
	}
	return writeCpioEntry(w, 0, cpioEntry{name: "TRAILER!!!"})
}

func writeCpioEntry(w io.Writer, inode int, e cpioEntry) error {
	links := 1
	if e.mode&0o170000 == cpioDir {
		links = 2
	}
	// magic, inode, mode, uid, gid, nlink, mtime, filesize, devmajor, devminor, rdevmajor, rdevminor, namesize, check.
	header := fmt.Sprintf("070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s\x00",
		inode, e.mode, 0, 0, links, 0, len(e.content), 0, 0, 0, 0, len(e.name)+1, 0, e.name)
	if _, err := io.WriteString(w, padToFour(header)); err != nil {
		return err
	}
	if _, err := w.Write(e.content); err != nil {
		return err
	}
	_, err := io.WriteString(w, padding(len(e.content)))
	return err
}

// padToFour pads s with zero bytes to a multiple of four, as the format requires for headers and contents.
func padToFour(s string) string { return s + padding(len(s)) }

func padding(n int) string { return "\x00\x00\x00"[:(4-n%4)%4] }
