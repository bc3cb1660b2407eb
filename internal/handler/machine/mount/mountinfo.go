package mount

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"
)

// Point is one line of /proc/self/mountinfo (proc_pid_mountinfo(5)).
type Point struct {
	// Path is the mount point, unescaped.
	Path string
	// Root is the directory of the file system that is mounted, unescaped.
	Root string
	// Type is the file system's type. Source is what the file system says it is mounted from.
	Type, Source string
}

// maxMountinfoLine is the most that a line may have, in bytes: three paths, each at most PATH_MAX long and four
// times that when escaped.
const maxMountinfoLine = 64 << 10

// Table reads the mounts that this process sees.
func Table() ([]Point, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}
	defer f.Close() //nolint:errcheck // opened for reading
	return parseMountinfo(f)
}

func parseMountinfo(r io.Reader) ([]Point, error) {
	var points []Point
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxMountinfoLine)
	for lines.Scan() {
		p, err := parsePoint(lines.Text())
		if err != nil {
			return nil, err
		}
		points = append(points, p)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}
	return points, nil
}

// parsePoint parses
//
//	36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
//
// with any number of optional fields before the separator "-".
func parsePoint(line string) (Point, error) {
	mounted, filesystem, ok := strings.Cut(line, " - ")
	left, right := strings.Fields(mounted), strings.Fields(filesystem)
	if !ok || len(left) < 6 || len(right) < 2 {
		return Point{}, fmt.Errorf("mount table: line %q is not understood", line)
	}
	return Point{Path: unescapePath(left[4]), Root: unescapePath(left[3]), Type: right[0], Source: unescapePath(right[1])}, nil
}

// unescapePath undoes the kernel's \ooo for space, tab, newline, backslash and #.
func unescapePath(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if c, ok := unescapeOctal(s[i:]); ok {
			b.WriteByte(c)
			i += 3
			continue
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// unescapeOctal reads an escape at the start of s.
func unescapeOctal(s string) (byte, bool) {
	if len(s) < 4 || s[0] != '\\' || s[1] > '3' {
		return 0, false
	}
	var c byte
	for _, d := range []byte(s[1:4]) {
		if d < '0' || d > '7' {
			return 0, false
		}
		c = c<<3 | (d - '0')
	}
	return c, true
}
