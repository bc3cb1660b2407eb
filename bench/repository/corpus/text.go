package corpus

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// text generates lines like the logs of services: an advancing time, words of which some are frequent, and numbers.
type text struct {
	rng  *rand.Rand
	now  time.Time
	line []byte
	rest []byte
	// words contains frequent words often.
	words [1 << 14]string
}

// textEpoch is the time at which the log begins.
var textEpoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func newText(seed uint64) *text {
	t := &text{rng: rand.New(rand.NewPCG(seed, 2)), now: textEpoch}
	syllables := [...]string{"an", "be", "con", "der", "el", "for", "ge", "in", "ko", "li", "ment", "no", "or", "per", "qua", "re", "sta", "ti", "un", "ver"}
	vocabulary := make([]string, 4096)
	for i := range vocabulary {
		for range 1 + t.rng.IntN(4) {
			vocabulary[i] += syllables[t.rng.IntN(len(syllables))]
		}
	}
	zipf := rand.NewZipf(t.rng, 1.2, 8, uint64(len(vocabulary)-1))
	for i := range t.words {
		t.words[i] = vocabulary[zipf.Uint64()]
	}
	return t
}

// Read implements io.Reader. It never ends.
func (t *text) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		if len(t.rest) == 0 {
			t.nextLine()
		}
		copied := copy(p[n:], t.rest)
		t.rest = t.rest[copied:]
		n += copied
	}
	return n, nil
}

func (t *text) nextLine() {
	t.now = t.now.Add(time.Duration(t.rng.Int64N(int64(time.Second))))
	l := t.now.AppendFormat(t.line[:0], time.RFC3339Nano)
	l = fmt.Appendf(l, " node-%02d %s[%d]:", t.rng.IntN(40), t.words[t.rng.IntN(64)], 300+t.rng.IntN(40))
	for range 4 + t.rng.IntN(16) {
		l = append(append(l, ' '), t.words[t.rng.Uint32()%uint32(len(t.words))]...)
	}
	l = fmt.Appendf(l, " id=%08x took=%dus\n", t.rng.Uint32(), t.rng.IntN(100000))
	t.line, t.rest = l, l
}
