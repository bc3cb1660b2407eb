package target

import (
	"bufio"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
)

// mount is a line of /proc/self/mountinfo (proc(5)).
type mount struct {
	point    string
	readOnly bool
}

// findMount returns the topmost mount at dir, or if there is none, the one whose mount point is in dir. It returns
// false if there is neither.
// st_dev would not work: a bind mount of a directory has the device of the directory around it.
func findMount(mountinfo io.Reader, dir string) (mount, bool, error) {
	var found mount
	ok := false
	lines := bufio.NewScanner(mountinfo)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		m, err := parseMount(lines.Text())
		if err != nil {
			return mount{}, false, err
		}
		if m.point == dir || (path.Dir(m.point) == dir && found.point != dir) {
			found, ok = m, true // a later line is mounted over an earlier one
		}
	}
	return found, ok, lines.Err()
}

// parseMount parses a line such as "36 35 98:0 /root /point rw,noatime shared:1 - ext4 /dev/x rw,errors=continue".
func parseMount(line string) (mount, error) {
	before, after, ok := strings.Cut(line, " - ")
	fields, super := strings.Fields(before), strings.Fields(after)
	if !ok || len(fields) < 6 || len(super) < 2 {
		return mount{}, fmt.Errorf("mountinfo: %q is not understood", line)
	}
	m := mount{point: unescapeOctal(fields[4]), readOnly: hasOption(fields[5], "ro")}
	if len(super) > 2 && hasOption(super[len(super)-1], "ro") {
		m.readOnly = true
	}
	return m, nil
}

func hasOption(options, option string) bool {
	return slices.Contains(strings.Split(options, ","), option)
}

// unescapeOctal undoes the kernel's octal escapes of space, tab, newline and backslash.
func unescapeOctal(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}
