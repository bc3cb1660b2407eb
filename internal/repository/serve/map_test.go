package serve

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/test/verdict"
)

// goldenBytes is the size of the golden maps' disk: a window, and a byte of the next one.
const goldenBytes = windowBytes + 1

// golden is the map of an overlay over "a disk" that has clusters 0, 2, 64 and the last one, and then cluster 1 as well, as docs/format.md has it.
var golden = []string{
	padded(sectorBytes, "7661727665636f77"+"1a9dccf8"+"01000000"+"06000000"+"61206469736b"+"0100800f00000000"+"0200000000000000"),
	padded(sectorBytes-4, "0000000000000000"+"01000000"+"0500000000000000"+"0100000000000000") + "da266fea",
	padded(sectorBytes-4, "0100000000000000"+"01000000"+"0100000000000000") + "66a88edf",
	padded(sectorBytes-4, "0000000000000000"+"03000000"+"0700000000000000"+"0100000000000000") + "07bbf588",
}

// padded is hexadecimal digits for n bytes.
func padded(n int, digits string) string { return digits + strings.Repeat("0", 2*n-len(digits)) }

func decoded(tb testing.TB, digits string) []byte {
	tb.Helper()
	data, err := hex.DecodeString(digits)
	if err != nil {
		tb.Fatal(err)
	}
	return data
}

func with(size int64, numbers ...int64) *clusters {
	c := newClusters("a disk", size)
	for _, n := range numbers {
		c.addExtent(extent.Extent{Offset: n * clusterBytes, Length: 1})
	}
	return c
}

func TestMap_isAsItIsWritten(t *testing.T) {
	t.Parallel()
	want := with(goldenBytes, 0, 2, 64, windowWords*64)
	data, l := want.encodeMap()
	clear(want.fresh)
	want.addExtent(extent.Extent{Offset: clusterBytes, Length: 1})
	u := want.takeChanges(l)
	if u.at != 3 || u.next.sectors != 4 {
		t.Errorf("%+v", u)
	}
	data = append(data, u.data...)
	if diff := cmp.Diff(strings.Join(golden, ""), hex.EncodeToString(data)); diff != "" {
		t.Errorf(verdict.GoldenMark+"-golden +encoded:\n%s", diff)
	}
	got := newClusters("a disk", goldenBytes)
	l, err := got.decodeMap(decoded(t, strings.Join(golden, "")))
	if err != nil || !slices.Equal(got.bits, want.bits) || l != u.next {
		verdict.Errorf(t, "%v, want %v; %+v, %v", got.bits, want.bits, l, err)
	}
}

// flushes is a map over many windows to which three flushes have added, and what each of them has made of it.
func flushes(t *testing.T) (data []byte, ends []int, bits [][]uint64) {
	t.Helper()
	c := with(6*windowBytes, 5, 6*windowWords*64-1)
	data, l := c.encodeMap()
	clear(c.fresh)
	for n := range 4 {
		ends, bits = append(ends, len(data)), append(bits, slices.Clone(c.bits))
		if n == 3 {
			break
		}
		for window := range int64(n + 3) {
			c.addExtent(extent.Extent{Offset: window*windowBytes + int64(n+70)*clusterBytes, Length: 1})
		}
		u := c.takeChanges(l)
		data, l = append(data, u.data...), u.next
	}
	return data, ends, bits
}

func read(data []byte) (*clusters, layout, error) {
	c := newClusters("a disk", 6*windowBytes)
	l, err := c.decodeMap(data)
	return c, l, err
}

// Wherever a bit is wrong in what was flushed, the map is refused.
func TestMap_noticesAWrongBit(t *testing.T) {
	t.Parallel()
	data, _, _ := flushes(t)
	for i := range data {
		spoilt := bytes.Clone(data)
		spoilt[i] ^= 1 << (i % 8)
		if _, _, err := read(spoilt); !errors.Is(err, errclass.Corrupt) {
			t.Fatalf("bit %d of byte %d: %v", i%8, i, err)
		}
	}
	for at := sectorBytes; at < len(data); at += sectorBytes { // a sector in the place of another one, and one that is gone
		spoilt := bytes.Clone(data)
		copy(spoilt[at:], make([]byte, sectorBytes))
		if _, _, err := read(spoilt); at < len(data)-5*sectorBytes && !errors.Is(err, errclass.Corrupt) {
			t.Errorf("no sector at %d: %v", at, err)
		}
	}
}

// A flush during which the power went leaves any of its sectors, and the end of the file anywhere. What was flushed before is there, what is
// there of the last one counts, and the next flush goes on. Where less is there than was flushed, the map is refused.
func TestMap_withATornEnd(t *testing.T) {
	t.Parallel()
	data, ends, bits := flushes(t)
	for n, end := range ends[:3] {
		next := ends[n+1]
		for length := range next {
			torn := data[:length]
			c, l, err := read(torn)
			// The first flush that did not end is not known from the outside: what the map was before it must be there as a whole.
			if length < ends[0] {
				if err == nil {
					t.Fatalf("%d bytes of a map with %d are accepted", length, ends[0])
				}
				continue
			}
			if length < end {
				continue // the torn end of an earlier one
			}
			if err != nil || l.sectors != int64(length/sectorBytes) || !within(bits[n], c.bits, bits[n+1]) {
				t.Fatalf("%d bytes, %d of them flushed: %+v, %v", length, end, l, err)
			}
		}
		// The file is as long as it should be, and sectors are missing.
		for missing := 1; missing < 1<<((next-end)/sectorBytes); missing++ {
			torn := bytes.Clone(data[:next])
			for i := range (next - end) / sectorBytes {
				if missing>>i&1 == 1 {
					clear(torn[end+i*sectorBytes:][:sectorBytes])
				}
			}
			c, l, err := read(torn)
			if err != nil || l.sectors < int64(end/sectorBytes) || l.sectors >= int64(next/sectorBytes) || !within(bits[n], c.bits, bits[n+1]) {
				t.Fatalf("flush %d without sectors %b: %+v, %v", n, missing, l, err)
			}
			c.addExtent(extent.Extent{Offset: 99 * clusterBytes, Length: 1})
			u := c.takeChanges(l)
			torn = append(torn[:u.at*sectorBytes], append(u.data, torn[min(len(torn), int(u.at)*sectorBytes+len(u.data)):]...)...)
			again, _, err := read(torn)
			if err != nil || !slices.Equal(again.bits, c.bits) {
				verdict.Fatalf(t, "flush %d without sectors %b, and then another one: %v", n, missing, err)
			}
		}
		// What a later flush has found to be there must stay.
		if n == 0 {
			continue
		}
		for at := sectorBytes; at < end; at += sectorBytes {
			torn := bytes.Clone(data[:next])
			clear(torn[at:][:sectorBytes])
			if _, _, err := read(torn); !errors.Is(err, errclass.Corrupt) {
				t.Errorf("flush %d, and the sector at %d that was flushed before is gone: %v", n, at, err)
			}
		}
	}
}

// within says whether got has all of least, and no more than most.
func within(least, got, most []uint64) bool {
	for i := range got {
		if least[i]&^got[i] != 0 || got[i]&^most[i] != 0 {
			return false
		}
	}
	return true
}

// What is no map of this disk is refused with a class, whatever it is, and what is read comes out again.
func FuzzMap(f *testing.F) {
	f.Add([]byte(mapMagic), []byte{1, 0, 0, 0, 6, 0, 0, 0}, []byte{})
	f.Add([]byte("something"), []byte{}, []byte{})
	whole, l := with(goldenBytes, 0, 3968).encodeMap()
	f.Add([]byte(mapMagic), append([]byte{3, 0, 0, 0}, whole[16:sectorBytes]...), []byte{})
	c := with(goldenBytes, 77)
	f.Add([]byte(mapMagic), whole[12:sectorBytes], whole[sectorBytes:])
	f.Add([]byte(mapMagic), whole[12:sectorBytes], append(whole[sectorBytes:], c.takeChanges(l).data...))
	f.Fuzz(func(t *testing.T, magic, head, rest []byte) {
		data := binary.LittleEndian.AppendUint32(bytes.Clone(magic), crc32.ChecksumIEEE(head))
		data = append(append(data, head...), rest...)
		// Each sector as the header wants it, unless there is none.
		for at := sectorBytes; at+sectorBytes <= len(data); at += sectorBytes {
			sector, sum := data[at:][:sectorBytes], crc32.ChecksumIEEE(head)
			if sector[sectorBytes-1] != 0 {
				binary.LittleEndian.PutUint32(sector[sectorBytes-4:], sumSector(sum, sector[:sectorBytes-4]))
			}
		}
		for _, size := range []int64{64*clusterBytes + 1, goldenBytes} {
			c := newClusters("a disk", size)
			_, err := c.decodeMap(data)
			if err != nil {
				if !errors.Is(err, errclass.Corrupt) && !errors.Is(err, errclass.Invalid) {
					t.Error(err)
				}
				continue
			}
			out, l := c.encodeMap()
			again := newClusters("a disk", size)
			if got, err := again.decodeMap(out); err != nil || got != l || !slices.Equal(again.bits, c.bits) {
				verdict.Errorf(t, "%+v, %+v: %v", got, l, err)
			}
		}
	})
}

// sum is the checksum of what follows it in a map's file.
func sum(p []byte) []byte { return binary.LittleEndian.AppendUint32(nil, crc32.ChecksumIEEE(p)) }

func TestMap_hasNoClusterBehindTheDisk(t *testing.T) {
	t.Parallel()
	for _, word := range []int{windowWords, windowWords + 1} { // in the last word of the disk, and in one that it has not got
		c := with(goldenBytes)
		c.bits[word] = 1 << 1
		c.markUsed(1)
		data, _ := c.encodeMap()
		if _, err := newClusters("a disk", goldenBytes).decodeMap(data); !errors.Is(err, errclass.Corrupt) || !strings.Contains(err.Error(), "behind") {
			t.Errorf("word %d: %v", word, err)
		}
	}
}
