package source

import (
	"bytes"
	"strings"

	"github.com/varvebackup/varve/internal/errclass"
)

// format is how a file holds an image.
type format string

const (
	formatRaw   format = "raw"
	formatQCOW2 format = "qcow2"
	formatGzip  format = "gzip"
	formatXZ    format = "xz"
	formatZstd  format = "zstd"
)

// headBytes is how much of a file detectFormat needs.
const headBytes = 4096

// signatures are the bytes at an offset that tell formats apart. Those with words instead of a format are refused.
var signatures = []struct {
	offset int
	bytes  string
	format format
	words  string
}{
	{0, "\x1f\x8b\x08", formatGzip, ""},
	{0, "\xfd7zXZ\x00", formatXZ, ""},
	{0, "\x28\xb5\x2f\xfd", formatZstd, ""},
	{0, "QFI\xfb\x00\x00\x00\x01", "", "an image in the first version of qcow"},
	{0, "QFI\xfb", formatQCOW2, ""},
	{0, "KDMV", "", "a VMDK image"},
	{0, "COWD", "", "a VMDK image"},
	{0, "# Disk DescriptorFile", "", "the description of a VMDK image"},
	{0, "vhdxfile", "", "a VHDX image"},
	{0, "conectix", "", "a VHD image"},
	{64, "\x7f\x10\xda\xbe", "", "a VDI image"},
	{0, "WithoutFreeSpace", "", "a Parallels image"},
	{0, "WithouFreSpacExt", "", "a Parallels image"},
	{0, "QED\x00", "", "a QED image"},
	{0, "PK\x03\x04", "", "a ZIP archive"},
	{0, "7z\xbc\xaf\x27\x1c", "", "a 7z archive"},
	{257, "ustar", "", "a tar archive, such as an OVA appliance"},
	{0, "\x04\x22\x4d\x18", "", "compressed with lz4"},
}

// detectFormat finds out what a file is that begins with head. Only what it is not made for is refused: every other
// content is a raw image.
func detectFormat(head []byte) (format, error) {
	for _, s := range signatures {
		if len(head) < s.offset || !bytes.HasPrefix(head[s.offset:], []byte(s.bytes)) {
			continue
		}
		if s.words == "" {
			return s.format, nil
		}
		return "", refuseFormat(s.words)
	}
	if isBzip2(head) {
		return "", refuseFormat("compressed with bzip2")
	}
	text := strings.ToLower(string(bytes.TrimLeft(head[:min(len(head), 512)], " \t\r\n")))
	if strings.HasPrefix(text, "<!doctype html") || strings.HasPrefix(text, "<html") {
		return "", errclass.Errorf(errclass.Invalid,
			"the address gave a web page: use the address of the image itself, which may be in the page")
	}
	return formatRaw, nil
}

func refuseFormat(words string) error {
	return errclass.Errorf(errclass.Invalid, "the file is %s, which is not supported: convert it to raw or qcow2 "+
		"(qemu-img convert), and compress it with gzip, xz or zstd if you like", words)
}

// isBzip2 reports whether a file begins as bzip2 does: BZh, the level, and the first block's magic number.
func isBzip2(head []byte) bool {
	return len(head) >= 10 && string(head[:3]) == "BZh" && head[3] >= '1' && head[3] <= '9' &&
		string(head[4:10]) == "1AY&SY"
}
