package disk

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
	"testing"
)

// testHeader returns a qcow2 header with a backing file and extensions.
func testHeader(version uint32, backing string, features uint64, extensions ...[]byte) []byte {
	b := make([]byte, imageHeaderBytesV3)
	copy(b, imageMagic)
	binary.BigEndian.PutUint32(b[4:], version)
	binary.BigEndian.PutUint32(b[20:], 16)
	binary.BigEndian.PutUint64(b[72:], features)
	binary.BigEndian.PutUint32(b[100:], imageHeaderBytesV3)
	if version == 2 {
		b = b[:imageHeaderBytes]
	}
	b = slices.Concat(b, slices.Concat(extensions...), make([]byte, 8))
	if backing != "" {
		binary.BigEndian.PutUint64(b[8:], uint64(len(b)))
		binary.BigEndian.PutUint32(b[16:], uint32(len(backing)))
	}
	return slices.Concat(b, []byte(backing), make([]byte, 1<<16))
}

func testExtension(kind uint32, text string) []byte {
	b := binary.BigEndian.AppendUint32(nil, kind)
	b = append(binary.BigEndian.AppendUint32(b, uint32(len(text))), text...)
	return append(b, make([]byte, (8-len(text)%8)%8)...)
}

func TestImageHeader_namesOtherFiles(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		header []byte
		want   imageHeader
	}{
		"nothing":       {testHeader(3, "", 0), imageHeader{}},
		"version 2":     {testHeader(2, "base", 0, testExtension(extensionBacking, "raw")), imageHeader{backing: true, backingName: "base", backingFormat: "raw"}},
		"backing":       {testHeader(3, "json:{}", 0, testExtension(1, "xyz"), testExtension(extensionBacking, "qcow2")), imageHeader{backing: true, backingName: "json:{}", backingFormat: "qcow2"}},
		"data file":     {testHeader(3, "", featureDataFile), imageHeader{dataFile: true}},
		"data name":     {testHeader(3, "", 0, testExtension(extensionDataFile, "/etc/shadow")), imageHeader{dataFile: true}},
		"a format only": {testHeader(3, "", 0, testExtension(extensionBacking, "raw")), imageHeader{backingFormat: "raw"}},
	} {
		got, err := readImageHeader(bytes.NewReader(c.header))
		if err != nil || *got != c.want {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	encrypted := testHeader(3, "", 0)
	encrypted[35] = 2
	if got, err := readImageHeader(bytes.NewReader(encrypted)); err != nil || !got.encrypted {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestImageHeader_refusesWhatItCannotRead(t *testing.T) {
	t.Parallel()
	change := func(at int, to byte) []byte {
		b := testHeader(3, "base", 0)
		b[at] = to
		return b
	}
	for name, header := range map[string][]byte{
		"empty": nil, "raw": make([]byte, 1<<16), "short": testHeader(3, "", 0)[:80], "version": change(7, 4), "small clusters": change(23, 8), "large clusters": change(23, 22),
		"backing beyond the cluster": change(12, 1), "backing name too long": change(18, 9), "header too long": change(101, 9), "extension too long": testHeader(3, "", 0, []byte{1, 1, 1, 1, 9, 0, 0, 0}),
	} {
		if got, err := readImageHeader(bytes.NewReader(header)); err == nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestHasProtocol(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{"base": false, "/a:b": false, "./a:b": false, "json:{}": true, "nbd://x": true, "a:b": true, "": false} {
		if hasProtocol(name) != want {
			t.Errorf("%q: %v", name, !want)
		}
	}
}

func FuzzReadImageHeader(f *testing.F) {
	f.Add(testHeader(3, "base", 0, testExtension(extensionBacking, "raw")))
	f.Add(testHeader(2, "json:{}", 0))
	f.Add(testHeader(3, "", featureDataFile, testExtension(extensionDataFile, "/etc/shadow")))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := readImageHeader(bytes.NewReader(b))
		if err == nil && !h.backing && h.backingName != "" {
			t.Errorf("%+v", h)
		}
		if err == nil && !strings.HasPrefix(string(b), imageMagic) {
			t.Error("it is no image")
		}
	})
}
