package serve

import (
	"bytes"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/repository"
)

// golden is the map of an overlay over "a disk" of 65 clusters that has the first, the third and the last, as docs/format.md has it.
const golden = "7661727665636f77" + "033bdf46" + "01000000" + "06000000" + "61206469736b" + "0500000000000000" + "0100000000000000"

func goldenClusters() *clusters {
	c := newClusters("a disk", 64*clusterBytes+1)
	for _, n := range []int64{0, 2, 64} {
		c.add(extent.Extent{Offset: n * clusterBytes, Length: 1})
	}
	return c
}

func TestTheMapIsAsItIsWritten(t *testing.T) {
	t.Parallel()
	want := goldenClusters()
	if diff := cmp.Diff(golden, hex.EncodeToString(want.encode())); diff != "" {
		t.Errorf("-golden +encoded:\n%s", diff)
	}
	data, err := hex.DecodeString(golden)
	if err != nil {
		t.Fatal(err)
	}
	got := newClusters("a disk", 64*clusterBytes+1)
	if err := got.decode(data); err != nil || !slices.Equal(got.bits, want.bits) {
		t.Errorf("%v, want %v: %v", got.bits, want.bits, err)
	}
}

// What is no map of this disk is refused with a class, whatever it is.
func FuzzMap(f *testing.F) {
	f.Add([]byte(mapMagic), []byte{1, 0, 0, 0, 6, 0, 0, 0})
	f.Add([]byte(mapMagic), goldenClusters().encode()[len(mapMagic)+4:])
	f.Add([]byte(mapMagic), append([]byte{2, 0, 0, 0}, goldenClusters().encode()[len(mapMagic)+8:]...))
	f.Add([]byte("something"), []byte{})
	f.Fuzz(func(t *testing.T, magic, body []byte) {
		sum := crc32.ChecksumIEEE(body)
		data := append(append(bytes.Clone(magic), byte(sum), byte(sum>>8), byte(sum>>16), byte(sum>>24)), body...)
		c := newClusters("a disk", 64*clusterBytes+1)
		err := c.decode(data)
		switch {
		case err == nil && !bytes.Equal(c.encode(), data):
			t.Error("another map was read")
		case err != nil && !errors.Is(err, repository.ErrCorrupt) && !errors.Is(err, repository.ErrInvalid):
			t.Error(err)
		}
	})
}
