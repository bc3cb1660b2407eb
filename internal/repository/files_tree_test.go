package repository

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// treeEntry is what must come back of a file.
type treeEntry struct {
	Mode, UID, GID uint32
	Size           int64
	Mtime          unix.Timespec
	Content        string
	Rdev           uint64
	Xattrs         map[string]string
	// Links has the other names of the same inode.
	Links string
}

// readTree reads a tree with other means than the product does. It leaves out sockets.
func readTree(tb testing.TB, root string) map[string]treeEntry {
	tb.Helper()
	out := map[string]treeEntry{}
	inodes := map[uint64][]string{}
	paths := map[string]uint64{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT == unix.S_IFSOCK {
			return nil
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		e := treeEntry{Mode: st.Mode, UID: st.Uid, GID: st.Gid, Mtime: st.Mtim, Xattrs: map[string]string{}}
		switch d.Type() {
		case 0:
			if e.Content, err = hashData(path); err != nil {
				return err
			}
			e.Size = st.Size
		case fs.ModeSymlink:
			if e.Content, err = os.Readlink(path); err != nil {
				return err
			}
		case fs.ModeDevice, fs.ModeDevice | fs.ModeCharDevice:
			e.Rdev = st.Rdev
		}
		list := make([]byte, 64<<10)
		n, err := unix.Llistxattr(path, list)
		if err != nil && !errors.Is(err, unix.ENOTSUP) {
			return err
		}
		for _, name := range strings.FieldsFunc(string(list[:max(n, 0)]), func(c rune) bool { return c == 0 }) {
			value := make([]byte, 64<<10)
			n, err := unix.Lgetxattr(path, name, value)
			if err != nil {
				return err
			}
			e.Xattrs[name] = string(value[:n])
		}
		if !d.IsDir() {
			inodes[st.Ino] = append(inodes[st.Ino], rel)
			paths[rel] = st.Ino
		}
		out[rel] = e
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	for rel, ino := range paths {
		e := out[rel]
		e.Links = strings.Join(inodes[ino], " ")
		out[rel] = e
	}
	return out
}

// hashData returns the hash of a file's bytes that are not zero, with their offsets.
func hashData(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	page := make([]byte, 4096)
	for at := int64(0); ; {
		start, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return hex.EncodeToString(sum.Sum(nil)), nil
		}
		if err != nil {
			return "", err
		}
		at = start / 4096 * 4096
		n, err := f.ReadAt(page, at)
		if n == 0 && err != nil {
			return "", err
		}
		if len(bytes.Trim(page[:n], "\x00")) > 0 {
			fmt.Fprintf(sum, "%d %q", at, page[:n])
		}
		at += 4096
	}
}

// allocated returns how many bytes a file takes.
func allocated(tb testing.TB, path string) int64 {
	tb.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		tb.Fatal(err)
	}
	return st.Blocks * 512
}

// treeMaker makes files, and ends the test if it cannot.
type treeMaker struct {
	tb   testing.TB
	root string
}

func newTree(tb testing.TB) *treeMaker {
	tb.Helper()
	return &treeMaker{tb: tb, root: tb.TempDir()}
}

func (m *treeMaker) check(err error) {
	m.tb.Helper()
	if err != nil {
		m.tb.Fatal(err)
	}
}

func (m *treeMaker) path(name string) string { return filepath.Join(m.root, name) }

func (m *treeMaker) dir(name string, mode uint32) {
	m.tb.Helper()
	m.check(os.MkdirAll(m.path(name), 0o755))
	m.check(unix.Chmod(m.path(name), mode))
}

func (m *treeMaker) file(name string, data []byte, mode uint32) {
	m.tb.Helper()
	m.check(os.MkdirAll(filepath.Dir(m.path(name)), 0o755))
	m.check(os.WriteFile(m.path(name), data, 0o600))
	m.check(unix.Chmod(m.path(name), mode))
}

func (m *treeMaker) age(name string, at time.Time) {
	m.tb.Helper()
	ts := []unix.Timespec{unix.NsecToTimespec(at.UnixNano()), unix.NsecToTimespec(at.UnixNano())}
	m.check(unix.UtimesNanoAt(unix.AT_FDCWD, m.path(name), ts, unix.AT_SYMLINK_NOFOLLOW))
}

func (m *treeMaker) sparse(name string, size int64, data map[int64]string) {
	m.tb.Helper()
	f, err := os.Create(m.path(name))
	m.check(err)
	for at, s := range data {
		_, err := f.WriteAt([]byte(s), at)
		m.check(err)
	}
	m.check(errors.Join(f.Truncate(size), f.Close()))
}

// everything fills the tree with one of each.
func (m *treeMaker) everything() {
	m.tb.Helper()
	m.file("plain", []byte("hello"), 0o644)
	m.file("empty", nil, 0o600)
	m.file("large", bytes.Repeat([]byte("0123456789abcdef"), 1<<20), 0o640)
	m.file("setuid", []byte("#!"), 0o6755)
	m.check(unix.Chown(m.path("setuid"), 12, 34))
	m.check(unix.Chmod(m.path("setuid"), 0o6755))
	m.file("none", []byte("no permissions"), 0)
	m.file("not utf-8 \xff\xfe", []byte("a"), 0o644)
	m.file("not utf-8 \ufffdff\ufffdfe", []byte("b"), 0o644)
	m.file("new\nline \" \\ <&> \u2028", []byte("c"), 0o644)
	m.file("x", []byte("d"), 0o644)
	m.file("x.kopia-entry", []byte("e"), 0o644)
	m.file("dir/.kopiaignore", []byte("*\n"), 0o644)
	m.file("dir/ignored?", []byte("f"), 0o644)
	m.file("dir-with-dash/file", []byte("g"), 0o644)
	m.file("dir/sub/file", []byte("h"), 0o644)
	m.dir("empty-dir", 0o1777)
	m.dir("dir/closed", 0o000)
	m.check(unix.Chown(m.path("empty-dir"), 1000, 1001))
	m.check(unix.Chmod(m.path("empty-dir"), 0o3775))
	m.check(os.Symlink("dir/sub/file", m.path("link")))
	m.check(os.Symlink("/nowhere \xff", m.path("dangling")))
	m.check(unix.Lchown(m.path("dangling"), 5, 6))
	m.check(os.Link(m.path("plain"), m.path("dir/hard")))
	m.check(os.Link(m.path("plain"), m.path("zz-hard")))
	m.check(os.Link(m.path("link"), m.path("link-hard")))
	m.check(unix.Mkfifo(m.path("dir/pipe"), 0o620))
	m.check(unix.Mkfifo(m.path("apipe"), 0o600))
	m.check(os.Link(m.path("apipe"), m.path("dir/sub/pipe-hard")))
	m.check(unix.Mknod(m.path("null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	m.check(unix.Mknod(m.path("disk"), unix.S_IFBLK|0o660, int(unix.Mkdev(7, 200))))
	s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	m.check(err)
	m.check(unix.Mknod(m.path("socket"), unix.S_IFSOCK|0o600, 0))
	m.check(unix.Close(s))
	m.sparse("sparse", 40<<20, map[int64]string{5 << 20: "five", 33<<20 + 17: "later"})
	m.sparse("all hole", 3<<40+12345, nil)
	m.check(os.Link(m.path("sparse"), m.path("dir/sparse-hard")))
	for _, name := range []string{"plain", "dir", "dir/sub", "empty"} {
		m.check(unix.Lsetxattr(m.path(name), "user.name", []byte("value of "+name+"\x00\xff"), 0))
	}
	m.check(unix.Lsetxattr(m.path("dir"), "trusted.varve", nil, 0))
	m.check(unix.Lsetxattr(m.path("dangling"), "trusted.on.a.link", []byte("yes"), 0))
	// cap_net_bind_service+ep, version 2
	m.check(unix.Lsetxattr(m.path("setuid"), "security.capability", []byte{1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 0))
	acl := []byte{2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 2, 0, 6, 0, 232, 3, 0, 0, 4, 0, 5, 0, 255, 255, 255, 255, 16, 0, 7, 0, 255, 255, 255, 255, 32, 0, 5, 0, 255, 255, 255, 255}
	m.check(unix.Lsetxattr(m.path("dir"), "system.posix_acl_default", acl, 0))
	m.check(unix.Lsetxattr(m.path("dir/sub/file"), "system.posix_acl_access", acl, 0))
	m.check(unix.Lsetxattr(m.root, "system.posix_acl_default", acl, 0))
	for i, name := range []string{"plain", "link", "dir/pipe", "null", "empty-dir", "dir/sub", "dir", "sparse"} {
		m.age(name, time.Unix(int64(i)*1e8-2e8, 123456789+int64(i)))
	}
	m.age("large", time.Date(2261, 5, 6, 7, 8, 9, 987654321, time.UTC))
	m.check(unix.UtimesNanoAt(unix.AT_FDCWD, m.path("none"), []unix.Timespec{{}, {Sec: 20_000_000_000, Nsec: 5}}, 0))
	m.check(unix.Chmod(m.root, 0o2711))
	m.check(unix.Chown(m.root, 77, 78))
	m.age(".", time.Unix(1e9, 7))
}

// deep makes a path that is longer than the kernel takes at once, and returns how long it is.
func (m *treeMaker) deep(data string) (length int) {
	m.tb.Helper()
	at, err := unix.Open(m.root, unix.O_DIRECTORY|unix.O_RDONLY, 0)
	m.check(err)
	name := strings.Repeat("d", 250)
	for range 40 {
		m.check(unix.Mkdirat(at, name, 0o755))
		next, err := unix.Openat(at, name, unix.O_DIRECTORY|unix.O_RDONLY, 0)
		m.check(err)
		m.check(unix.Close(at))
		at = next
		length += len(name) + 1
	}
	f, err := unix.Openat(at, "file", unix.O_CREAT|unix.O_WRONLY, 0o600)
	m.check(err)
	_, err = unix.Write(f, []byte(data))
	m.check(err)
	m.check(errors.Join(unix.Close(f), unix.Close(at)))
	return length
}

// readDeep reads the file that deep made.
func readDeep(tb testing.TB, root string) string {
	tb.Helper()
	at, err := unix.Open(root, unix.O_DIRECTORY|unix.O_RDONLY, 0)
	for range 40 {
		if err != nil {
			tb.Fatal(err)
		}
		var next int
		next, err = unix.Openat(at, strings.Repeat("d", 250), unix.O_DIRECTORY|unix.O_RDONLY, 0)
		_ = unix.Close(at)
		at = next
	}
	if err != nil {
		tb.Fatal(err)
	}
	defer unix.Close(at)
	f, err := unix.Openat(at, "file", unix.O_RDONLY, 0)
	if err != nil {
		tb.Fatal(err)
	}
	defer unix.Close(f)
	data := make([]byte, 100)
	n, err := unix.Read(f, data)
	if err != nil {
		tb.Fatal(err)
	}
	return string(data[:n])
}

// pass lets the clock of the file system go on.
func (m *treeMaker) pass() {
	m.tb.Helper()
	time.Sleep(20 * time.Millisecond)
}
