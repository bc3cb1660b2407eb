package mount

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMountinfo_isParsed(t *testing.T) {
	t.Parallel()
	const table = `22 27 0:20 / /sys rw,nosuid shared:7 - sysfs sysfs rw
36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 propagate_from:3 unbindable - ext3 /dev/root rw,errors=continue
40 35 0:41 /a\040b\134c /pods/x/with\040space\011tab\012newline rw - tmpfs varve\040x rw
`
	got, err := parseMountinfo(strings.NewReader(table))
	if err != nil {
		t.Fatal(err)
	}
	want := []Point{
		{Path: "/sys", Root: "/", Type: "sysfs", Source: "sysfs"},
		{Path: "/mnt2", Root: "/mnt1", Type: "ext3", Source: "/dev/root"},
		{Path: "/pods/x/with space\ttab\nnewline", Root: `/a b\c`, Type: "tmpfs", Source: "varve x"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestMountinfo_thatIsNotUnderstoodIsAnError(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"", "1 2 3", "36 35 98:0 /mnt1 /mnt2 rw", "36 35 98:0 / /mnt rw - ext3"} {
		if _, err := parsePoint(line); err == nil {
			t.Errorf("%q was taken", line)
		}
	}
}

func FuzzUnescape(f *testing.F) {
	for _, s := range []string{`a\040b`, `\`, `\0`, `\777`, `\08x`, "plain"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := unescapePath(s)
		if len(got) > len(s) {
			t.Errorf("%q grew to %q", s, got)
		}
		if !strings.Contains(s, `\`) && got != s {
			t.Errorf("%q became %q", s, got)
		}
	})
}

func TestCheckElement_takesOneElement(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", ".", "..", "a/b", "/", "a\x00", strings.Repeat("x", 256)} {
		if err := checkElement(name); !errors.Is(err, ErrUnsafePath) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if err := checkElement("backup-0123"); err != nil {
		t.Error(err)
	}
}
