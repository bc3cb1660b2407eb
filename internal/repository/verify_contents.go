package repository

import (
	"context"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/content"
	"github.com/zeebo/blake3"
	"golang.org/x/sync/errgroup"
)

const (
	// sortedContents is how many contents are sorted by their place in the packs at once, in some 50 MiB of memory. Indexes have
	// them in the order of their hashes.
	sortedContents = 512 << 10
	// contentsAtOnce is how many contents one worker reads at once.
	contentsAtOnce = 32
)

// reading is one pass over the contents.
type reading struct {
	o      VerifyOptions
	r      *refreshing
	rehash func(content.ID, []byte) error

	// mu guards what follows.
	mu     sync.Mutex
	bad    map[content.ID]error
	report *Report
}

// readContents reads a sample of all contents, each once, and returns what is wrong with the damaged ones.
func (r *Repository) readContents(ctx context.Context, o VerifyOptions, report *Report) (map[content.ID]error, error) {
	v := &reading{o: o, r: r.reader(), rehash: r.rehash(), bad: map[content.ID]error{}, report: report}
	var infos []content.Info
	names := map[blob.ID]blob.ID{}
	err := r.rep.ContentReader().IterateContents(ctx, content.IterateOptions{}, func(info content.Info) error {
		if !sampled(info.ContentID, o.Percent, o.Sample) {
			return ctx.Err()
		}
		// Keep one string per pack, not one per content.
		if name, ok := names[info.PackBlobID]; ok {
			info.PackBlobID = name
		} else {
			names[info.PackBlobID] = info.PackBlobID
		}
		if infos = append(infos, info); len(infos) < sortedContents {
			return ctx.Err()
		}
		err := v.read(ctx, infos)
		infos = infos[:0]
		return err
	})
	if err == nil {
		err = v.read(ctx, infos)
	}
	if err != nil {
		return nil, fmt.Errorf("read the contents: %w", err)
	}
	return v.bad, nil
}

// read reads contents in the order of their places.
func (v *reading) read(ctx context.Context, infos []content.Info) error {
	slices.SortFunc(infos, byPlace)
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(v.o.Workers)
	for part := range slices.Chunk(infos, contentsAtOnce) {
		if inner.Err() != nil {
			break
		}
		group.Go(func() error {
			return v.r.Contents(inner, part, func(i int, data []byte, err error) error { return v.check(part[i].ContentID, data, err) })
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return ctx.Err()
}

// check checks a content, or why it could not be read, and counts it.
func (v *reading) check(id content.ID, data []byte, err error) error {
	err = wholeContent(v.rehash, id, data, err)
	if err != nil && !errors.Is(err, ErrCorrupt) {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if err != nil {
		v.bad[id] = err
	}
	v.report.Contents++
	v.report.Bytes += int64(len(data))
	if v.o.Progress != nil {
		v.o.Progress(v.report.Contents, v.report.Bytes)
	}
	return nil
}

// wholeContent returns what is wrong with a content that was read as data, or could not be read because of err.
func wholeContent(rehash func(content.ID, []byte) error, id content.ID, data []byte, err error) error {
	if err != nil {
		return readError(fmt.Sprintf("read content %s", id), err)
	}
	return rehash(id, data)
}

// sampled says whether a content is in a sample of that percentage, that is, whether its hash lies in a window of the hash space
// that begins at the sample's number.
func sampled(id content.ID, percent float64, sample uint64) bool {
	if percent >= 100 {
		return true
	}
	from := binary.BigEndian.Uint64(id.Hash()) - sample
	return float64(from) < percent/100*math.MaxUint64
}

// rehash returns a function that compares a content with its ID, which is a keyed hash of it. In repositories with another hash
// it relies on kopia, which has authenticated the content.
func (r *Repository) rehash() func(content.ID, []byte) error {
	f := r.rep.ContentReader().ContentFormat()
	if f.GetHashFunction() != hashAlgorithm {
		return func(content.ID, []byte) error { return nil }
	}
	key := f.GetHmacSecret()
	hashers := sync.Pool{New: func() any {
		h, err := blake3.NewKeyed(key[:32])
		if err != nil {
			panic(err) // the key has another length
		}
		return h
	}}
	return func(id content.ID, data []byte) error {
		h, _ := hashers.Get().(*blake3.Hasher)
		defer hashers.Put(h)
		h.Reset()
		if _, err := h.Write(data); err != nil {
			return err
		}
		if subtle.ConstantTimeCompare(h.Sum(nil)[:16], id.Hash()) != 1 {
			return fmt.Errorf("%w: content %s has another hash", ErrCorrupt, id)
		}
		return nil
	}
}
