package maintain

import (
	"encoding/binary"
	"testing"

	"github.com/kopia/kopia/repo/content"
)

// numberedContent returns the ID of a content whose hash is a number.
func numberedContent(tb testing.TB, n uint64) content.ID {
	tb.Helper()
	var hash [16]byte
	binary.BigEndian.PutUint64(hash[:], n)
	id, err := content.IDFromHash("", hash[:])
	if err != nil {
		tb.Fatal(err)
	}
	return id
}

// A filter has everything that was added and a few others, which differ from filter to filter. It has no more bits than it says.
func TestContentFilter_hasWhatWasAdded(t *testing.T) {
	t.Parallel()
	const contents = 200_000
	filters := []*ContentFilter{NewFilterOfBits(contents * filterBits), NewFilterOfBits(contents * filterBits)}
	for n := range uint64(contents) {
		for _, f := range filters {
			f.addContent(numberedContent(t, n))
		}
	}
	mistaken, both := 0, 0
	for n := range uint64(2 * contents) {
		id := numberedContent(t, n)
		one, other := filters[0].mayHave(id), filters[1].mayHave(id)
		switch {
		case n < contents && (!one || !other):
			t.Fatalf("content %d is not there", n)
		case n >= contents && one:
			mistaken++
			if other {
				both++
			}
		}
	}
	t.Logf("%d of %d others seem to be there, %d in both filters", mistaken, contents, both)
	if mistaken > contents/80 || both > contents/2000 {
		t.Errorf("%d of %d others seem to be there, %d in both filters", mistaken, contents, both)
	}
	for contents, want := range map[int64]int{0: minFilterBits, 1000: minFilterBits, 400e6: 4e9, 1 << 40: maxFilterBits / filterBits * filterBits} {
		if bits := filterSize(contents); bits != int64(want) {
			t.Errorf("%d contents: %d bits, want %d", contents, bits, want)
		}
	}
}
