package corpus

import (
	"fmt"
	"math/rand/v2"

	"github.com/varvebackup/varve/internal/extent"
)

// crowded is how many times in a row Pieces may hit a taken place before it gives up.
const crowded = 1000

// Pieces chooses count pieces of equal length that do not overlap, at random multiples of align within the given
// extents. The pieces are in no order.
func Pieces(rng *rand.Rand, within []extent.Extent, length, align int64, count int) ([]extent.Extent, error) {
	// places[i] is how many pieces can begin in the first i extents.
	places := make([]int64, 1, len(within)+1)
	for _, e := range within {
		first := (e.Offset + align - 1) &^ (align - 1)
		var n int64
		if e.End()-first >= length {
			n = (e.End()-first-length)/align + 1
		}
		places = append(places, places[len(places)-1]+n)
	}
	total := places[len(places)-1]
	taken := map[int64]int64{} // the piece that begins in each stretch of length bytes
	var out []extent.Extent
	for misses := 0; len(out) < count; {
		if total == 0 || misses == crowded {
			return nil, fmt.Errorf("no room for %d pieces of %d bytes", count, length)
		}
		offset := nthPlace(within, places, rng.Int64N(total), align)
		if overlapsTaken(taken, offset, length) {
			misses++
			continue
		}
		misses = 0
		taken[offset/length] = offset
		out = append(out, extent.Extent{Offset: offset, Length: length})
	}
	return out, nil
}

// nthPlace returns the offset of the nth place.
func nthPlace(within []extent.Extent, places []int64, n, align int64) int64 {
	low, high := 0, len(within)-1 // the extent with places[i] <= n < places[i+1]
	for low < high {
		mid := (low + high) / 2
		if n < places[mid+1] {
			high = mid
		} else {
			low = mid + 1
		}
	}
	first := (within[low].Offset + align - 1) &^ (align - 1)
	return first + (n-places[low])*align
}

// overlapsTaken says whether a piece at offset would overlap another one, which must begin in the same stretch or in a neighbor.
func overlapsTaken(taken map[int64]int64, offset, length int64) bool {
	for stretch := offset/length - 1; stretch <= offset/length+1; stretch++ {
		if at, ok := taken[stretch]; ok && at < offset+length && offset < at+length {
			return true
		}
	}
	return false
}
