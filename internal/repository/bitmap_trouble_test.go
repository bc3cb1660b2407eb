package repository

import (
	"errors"
	"strings"
	"sync/atomic"

	"github.com/kopia/kopia/repo/blob"
	"pgregory.net/rapid"
)

// errTrouble is the storage's error in a model.
var errTrouble = errors.New("the storage does not answer")

// trouble makes something go wrong in a backup, or nothing. over ends the trouble, and says whether the process was killed.
func (m *bitmapModel) trouble(rt *rapid.T, at *modelPlace, c *modelConnection, q *Request, killed func()) (trouble string, over func() bool) {
	trouble = rapid.SampledFrom([]string{"", "", "", "source", "contents", "indexes", "lists", "puts", "answers", "killed", "killed", "killed"}).Draw(rt, "trouble")
	from := rapid.Int64Range(1, 24).Draw(rt, "from")
	var asked atomic.Int64
	// now fails often times, from its from-th call on.
	now := func(often int64) error {
		if n := asked.Add(1); n >= from && n < from+often {
			return errTrouble
		}
		return nil
	}
	read := func(prefix string, often int64) *func(blob.ID) error {
		fail := func(id blob.ID) error {
			if !strings.HasPrefix(string(id), prefix) {
				return nil
			}
			return now(often)
		}
		return &fail
	}
	p := m.process(at, c)
	switch trouble {
	case "source":
		for _, d := range m.disks {
			d.broken.Store(true)
		}
	case "contents":
		from = (from + 2) / 3
		blobs := rapid.SampledFrom([]string{"q", "q", "q", "p", "kopia"}).Draw(rt, "blobs")
		at.failing.Store(read(blobs, rapid.SampledFrom([]int64{1, 2, 4, 1000}).Draw(rt, "often")))
	case "indexes": // kopia repeats these forever
		from = (from + 3) / 4
		at.failing.Store(read("x", 1))
	case "lists":
		from = (from + 3) / 4
		at.lists = func() error { return now(1) }
	case "puts":
		often := rapid.SampledFrom([]int64{1, 1000}).Draw(rt, "often")
		at.refusesPut = func(blob.ID) error { return now(often) }
	case "answers":
		at.answers = func(blob.ID) error { return now(1) }
	case "killed":
		p.killed = killed // Time stops.
		last := rapid.Bool().Draw(rt, "last")
		switch rapid.IntRange(0, 3).Draw(rt, "when") {
		case 0:
			q.settled = func() { p.dies(int(from+3)/4, last) }
		case 1:
			q.flushing = func() { p.dies(int(from+7)/8, last) }
		default:
			p.dies(int(from), last)
		}
	}
	return trouble, func() bool {
		at.failing.Store(nil)
		at.lists, at.refusesPut, at.answers = nil, nil, nil
		for _, d := range m.disks {
			d.broken.Store(false)
		}
		return p.wasKilled()
	}
}

// process returns the process of a connection.
func (m *bitmapModel) process(at *modelPlace, c *modelConnection) *process {
	for machine, o := range at.connections {
		if o == c {
			return at.site.process(machine)
		}
	}
	panic("nobody has this connection")
}
