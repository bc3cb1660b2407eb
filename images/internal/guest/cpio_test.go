package guest

import (
	"bytes"
	"io/fs"
	"strings"
	"testing"
)

// wrongData is the mark of test/verdict, which this module cannot import.
const wrongData = "WRONG DATA: "

func TestCpioIsTheSameEveryTime(t *testing.T) {
	t.Parallel()
	write := func(names ...string) []byte {
		i := newInitramfs("")
		for _, name := range names {
			i.setFile(name, fs.FileMode(0o755), []byte(name))
		}
		var out bytes.Buffer
		if err := writeCpio(&out, i.entries); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	a := write("z/y/x", "b")
	if !bytes.Equal(a, write("b", "z/y/x")) {
		t.Error(wrongData + "the order of adding shows in the archive")
	}
	// The kernel creates no parent directories, so a directory must come before its content.
	last := -1
	for _, name := range []string{"z\x00", "z/y\x00", "z/y/x\x00", "TRAILER!!!\x00"} {
		at := bytes.Index(a, []byte(name))
		if at <= last {
			t.Errorf("%q stands at %d, after something at %d", name, at, last)
		}
		last = at
	}
}

// One entry, byte for byte as in the kernel's buffer-format document.
func TestCpioEntry(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := writeCpioEntry(&out, 1, cpioEntry{name: "ab", mode: cpioFile | 0o644, content: []byte("hello")}); err != nil {
		t.Fatal(err)
	}
	header := "070701" + strings.Join([]string{
		"00000001", "000081A4", "00000000", "00000000", "00000001", "00000000", "00000005",
		"00000000", "00000000", "00000000", "00000000", "00000003", "00000000",
	}, "")
	// 110 bytes of header and 3 of name are padded to 116, 5 bytes of content to 8.
	if want := header + "ab\x00\x00\x00\x00" + "hello\x00\x00\x00"; out.String() != want {
		t.Errorf("got  %q\nwant %q", out.String(), want)
	}
}
