// Package corpus makes the disk image that the repository's benchmark backs up, and chooses where it is changed.
// Everything is derived from a seed and sizes, except the files of the system, which are the machine's own. Offsets
// and lengths are in bytes.
package corpus

import (
	"math/rand/v2"

	"github.com/varvebackup/varve/internal/extent"
)

// Kind is the kind of content of a part of the image.
type Kind int

const (
	// System is files of this machine's /usr, one after the other.
	System Kind = iota
	// Text is lines of a log, which compress well and do not repeat.
	Text
	// Random does not compress.
	Random
	// Zero is written zeros, as a guest leaves them: no holes.
	Zero

	kinds = 4
)

// Sizes is the bytes of each kind, in multiples of Grain.
type Sizes [kinds]int64

// Total returns the number of bytes that are not holes.
func (s Sizes) Total() int64 { return s[System] + s[Text] + s[Random] + s[Zero] }

// Grain is the alignment of everything in the image: the block size of the usual file systems.
const Grain = 4 << 10

// Mix divides a number of bytes among the kinds: half are files of the system, if there are that many, and an eighth are zeros.
func Mix(bytes, system int64) Sizes {
	round := func(n int64) int64 { return n &^ (Grain - 1) }
	s := Sizes{System: round(min(bytes/2, system)), Zero: round(bytes / 8)}
	s[Text] = round((bytes - s[System] - s[Zero]) / 2)
	s[Random] = round(bytes) - s[System] - s[Zero] - s[Text]
	return s
}

// Run is an extent with one kind of content.
type Run struct {
	extent.Extent
	Kind Kind
}

// The length of a run. Files are on disks in pieces of such lengths, with free space between them.
const (
	minRun = 64 << 10
	maxRun = 8 << 20
)

// Layout spreads content over an image, in order, like a file system that has been in use: runs of different kinds
// and lengths, with holes between them. The image must be at least as large as the content, and a multiple of Grain.
func Layout(seed uint64, imageBytes int64, sizes Sizes) []Run {
	rng := rand.New(rand.NewPCG(seed, 1))
	var runs []Run
	var weights []float64
	var sum float64
	weigh := func() {
		w := rng.Float64()
		weights, sum = append(weights, w), sum+w
	}
	for left := sizes; left.Total() > 0; {
		kind := left.pickKind(rng)
		length := min(minRun+Grain*rng.Int64N((maxRun-minRun)/Grain+1), left[kind])
		left[kind] -= length
		runs = append(runs, Run{extent.Extent{Length: length}, kind})
		weigh()
	}
	weigh() // the hole after the last run
	holes, at := imageBytes-sizes.Total(), int64(0)
	for i := range runs {
		at += int64(float64(holes)*weights[i]/sum) &^ (Grain - 1)
		runs[i].Offset = at
		at += runs[i].Length
	}
	return runs
}

// pickKind chooses a kind at random, weighted by the bytes that it has left.
func (s Sizes) pickKind(rng *rand.Rand) Kind {
	at := rng.Int64N(s.Total())
	for kind, bytes := range s {
		if at < bytes {
			return Kind(kind)
		}
		at -= bytes
	}
	panic("unreachable: at is less than the total")
}

// Extents returns the extents of one kind.
func Extents(runs []Run, kind Kind) []extent.Extent {
	var out []extent.Extent
	for _, r := range runs {
		if r.Kind == kind {
			out = append(out, r.Extent)
		}
	}
	return out
}
