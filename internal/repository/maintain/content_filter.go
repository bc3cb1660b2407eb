package maintain

import (
	"hash/maphash"
	"sync/atomic"

	"github.com/kopia/kopia/repo/content"
)

const (
	// filterBits is the size of a filter in bits per content, and filterProbes is how many bits a content sets. Fewer than 1 in
	// 100 contents that were not added seem to be in the filter.
	filterBits   = 10
	filterProbes = 7
	// minFilterBits is the smallest filter, which makes no mistakes in a small repository. maxFilterBits is the largest: 1 GiB,
	// for 850 million contents. With more contents, more garbage is kept.
	minFilterBits = 8 << 20
	maxFilterBits = 8 << 30
)

// ContentFilter is a Bloom filter of contents. It says of all contents that were added that they are in it, and of a few others.
// Which others differs from filter to filter. It is safe for concurrent use.
type ContentFilter struct {
	first, second maphash.Seed
	words         []atomic.Uint64
}

// NewContentFilter makes a filter for this many contents.
func NewContentFilter(contents int64) *ContentFilter { return NewFilterOfBits(filterSize(contents)) }

// filterSize returns how many bits the filter for this many contents has.
func filterSize(contents int64) int64 {
	return max(min(contents, maxFilterBits/filterBits)*filterBits, minFilterBits)
}

func NewFilterOfBits(bits int64) *ContentFilter {
	return &ContentFilter{first: maphash.MakeSeed(), second: maphash.MakeSeed(), words: make([]atomic.Uint64, (bits+63)/64)}
}

// probeBits calls each with the place of every bit of a content, until each returns false.
func (f *ContentFilter) probeBits(id content.ID, each func(word *atomic.Uint64, bit uint64) bool) {
	hash := id.Hash()
	at, step := maphash.Bytes(f.first, hash), maphash.Bytes(f.second, hash)
	bits := uint64(len(f.words)) * 64
	for range filterProbes {
		bit := at % bits
		if !each(&f.words[bit/64], 1<<(bit%64)) {
			return
		}
		at += step
	}
}

func (f *ContentFilter) addContent(id content.ID) {
	f.probeBits(id, func(word *atomic.Uint64, bit uint64) bool {
		if word.Load()&bit == 0 {
			word.Or(bit)
		}
		return true
	})
}

// mayHave says whether a content may have been added. If it says no, the content was not added.
func (f *ContentFilter) mayHave(id content.ID) bool {
	all := true
	f.probeBits(id, func(word *atomic.Uint64, bit uint64) bool {
		all = word.Load()&bit != 0
		return all
	})
	return all
}
