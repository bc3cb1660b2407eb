// Package layer writes tar streams whose bytes depend only on their content: names in order, one fixed time, numeric
// owners and no user names.
package layer

import (
	"archive/tar"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// epoch is the modification time of everything in a layer.
var epoch = time.Unix(0, 0).UTC()

// Entry is one file, directory or symbolic link of a layer.
type Entry struct {
	Name       string            // Path in the image, without a leading slash.
	Mode       fs.FileMode       // Type and permissions: a regular file, fs.ModeDir or fs.ModeSymlink.
	Path       string            // The path of a regular file's content.
	Link       string            // The target of a symbolic link.
	Owner      int               // The numbers of both user and group. Zero is root.
	Attributes map[string]string // Extended attributes by name: "security.capability" has file capabilities.
}

// attributePrefix is what the name of an extended attribute has before it in a tar record.
const attributePrefix = "SCHILY.xattr."

// Write writes the entries and their parent directories, sorted by name.
func Write(w io.Writer, entries []Entry) error {
	all := withParents(entries)
	slices.SortFunc(all, func(a, b Entry) int { return cmp.Compare(a.Name, b.Name) })
	tw := tar.NewWriter(w)
	for i, e := range all {
		if i > 0 && all[i-1].Name == e.Name {
			return fmt.Errorf("write layer: %s is in it twice", e.Name)
		}
		if err := writeEntry(tw, e); err != nil {
			return fmt.Errorf("write layer: %s: %w", e.Name, err)
		}
	}
	return tw.Close()
}

// withParents adds the parent directories of entries that are not entries themselves.
func withParents(entries []Entry) []Entry {
	have := map[string]bool{}
	for _, e := range entries {
		have[e.Name] = true
	}
	all := slices.Clone(entries)
	for _, e := range entries {
		for dir := filepath.Dir(e.Name); dir != "." && !have[dir]; dir = filepath.Dir(dir) {
			have[dir] = true
			all = append(all, Entry{Name: dir, Mode: fs.ModeDir | 0o755})
		}
	}
	return all
}

func writeEntry(tw *tar.Writer, e Entry) (err error) {
	h := &tar.Header{
		Name: e.Name, Mode: unixMode(e.Mode), Uid: e.Owner, Gid: e.Owner, ModTime: epoch, Format: tar.FormatPAX,
	}
	for name, value := range e.Attributes {
		if h.PAXRecords == nil {
			h.PAXRecords = map[string]string{}
		}
		h.PAXRecords[attributePrefix+name] = value
	}
	switch {
	case e.Mode.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, e.Name+"/"
		return tw.WriteHeader(h)
	case e.Mode&fs.ModeSymlink != 0:
		h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, e.Link, 0o777
		return tw.WriteHeader(h)
	}
	f, err := os.Open(e.Path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	h.Typeflag, h.Size = tar.TypeReg, info.Size()
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.Copy(tw, f)
	return err
}

// unixMode returns the permissions with the sticky bit, which fs.FileMode keeps in a different place than tar does.
func unixMode(m fs.FileMode) int64 {
	mode := int64(m.Perm())
	if m&fs.ModeSticky != 0 {
		mode |= 0o1000
	}
	return mode
}

// Filter copies a tar stream. It leaves out the names for which drop returns true (paths without a leading "./" or
// slash; dropping a directory drops everything below it), and removes everything that varies between two runs over
// the same content. It keeps the order of the entries, so a sorted input gives a reproducible output. A hard link to
// something dropped is an error.
func Filter(w io.Writer, r io.Reader, drop func(name string) bool) error {
	tr, tw := tar.NewReader(r), tar.NewWriter(w)
	dropped := map[string]bool{}
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return tw.Close()
		}
		if err != nil {
			return fmt.Errorf("filter layer: %w", err)
		}
		name := cleanName(h.Name)
		if name == "" {
			continue // The root itself.
		}
		if dropped[filepath.Dir(name)] || drop(name) {
			dropped[name] = true
			continue
		}
		if h.Typeflag == tar.TypeLink && dropped[cleanName(h.Linkname)] {
			return fmt.Errorf("filter layer: %s is a hard link to %s, which is left out", name, h.Linkname)
		}
		if err := copyEntry(tw, tr, h, name); err != nil {
			return fmt.Errorf("filter layer: %s: %w", name, err)
		}
	}
}

func copyEntry(tw *tar.Writer, r io.Reader, h *tar.Header, name string) error {
	out := &tar.Header{
		Typeflag: h.Typeflag, Name: name, Linkname: h.Linkname, Size: h.Size, Mode: h.Mode, Uid: h.Uid, Gid: h.Gid,
		ModTime: epoch, Devmajor: h.Devmajor, Devminor: h.Devminor, Format: tar.FormatPAX, PAXRecords: extendedAttributes(h),
	}
	switch h.Typeflag {
	case tar.TypeDir:
		out.Name += "/"
	case tar.TypeLink:
		out.Linkname = cleanName(h.Linkname)
	}
	if err := tw.WriteHeader(out); err != nil {
		return err
	}
	_, err := io.Copy(tw, r)
	return err
}

// extendedAttributes returns the extended attributes of a file (file capabilities are one), and no other record.
func extendedAttributes(h *tar.Header) map[string]string {
	var kept map[string]string
	for k, v := range h.PAXRecords {
		if !strings.HasPrefix(k, attributePrefix) {
			continue
		}
		if kept == nil {
			kept = map[string]string{}
		}
		kept[k] = v
	}
	return kept
}

func cleanName(name string) string {
	return strings.Trim(strings.TrimPrefix(name, "./"), "/")
}
