package files

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/compression"
	"github.com/kopia/kopia/repo/object"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/table"
)

// link is a file with several names that is stored, or being stored, under one of them.
type link struct {
	done chan struct{}
	id   object.ID
	err  error
	// left is how many names are still to come.
	left uint64
}

// storeOnce stores a file, unless it is stored under another of its names.
func (u *upload) storeOnce(ctx context.Context, f *sourceFile) (object.ID, error) {
	if f.links < 2 {
		return u.store(ctx, f)
	}
	u.mu.Lock()
	l := u.links[f.link]
	first := l == nil
	if first {
		l = &link{done: make(chan struct{}), left: f.links}
		u.links[f.link] = l
	}
	if l.left--; l.left == 0 {
		delete(u.links, f.link)
	}
	u.mu.Unlock()
	if !first {
		<-l.done
		u.progress.addBytes(f.size)
		return l.id, l.err
	}
	l.id, l.err = u.store(ctx, f)
	close(l.done)
	return l.id, l.err
}

// store stores a file without reading its holes.
func (u *upload) store(ctx context.Context, f *sourceFile) (object.ID, error) {
	file, err := u.volume.openFile(f.dir, f.name)
	if err != nil {
		return object.EmptyID, err
	}
	defer file.Close() //nolint:errcheck // it only reads
	data := []extent{{length: f.size}}
	if f.holes {
		if data, err = dataExtents(file, f.size); err != nil {
			return object.EmptyID, err
		}
	}
	if len(data) == 1 && data[0].length == f.size || f.size == 0 {
		return u.storeData(ctx, file, extent{length: f.size})
	}
	var entries []object.IndirectObjectEntry
	at := int64(0)
	for _, e := range append(data, extent{offset: f.size}) {
		if entries, err = u.zeroes.append(ctx, entries, at, e.offset-at); err != nil {
			return object.EmptyID, err
		}
		u.progress.addBytes(e.offset - at)
		if at = e.end(); e.length == 0 {
			continue
		}
		id, err := u.storeData(ctx, file, e)
		if err != nil {
			return object.EmptyID, err
		}
		entries = append(entries, object.IndirectObjectEntry{Start: e.offset, Length: e.length, Object: id})
	}
	if len(entries) == 1 {
		return entries[0].Object, nil
	}
	id, _, err := table.WriteList(ctx, u.w, entries)
	return id, err
}

// storeData stores a part of a file as an object.
func (u *upload) storeData(ctx context.Context, file *os.File, e extent) (object.ID, error) {
	w := u.w.NewObjectWriter(ctx, object.WriterOptions{
		Description: "FILE:" + file.Name(), Compressor: compression.Name(u.o.Compressor), MetadataCompressor: table.Compressor, AsyncWrites: 1,
	})
	defer w.Close() //nolint:errcheck // Result says what went wrong
	buffer, _ := u.buffers.Get().(*[]byte)
	defer u.buffers.Put(buffer)
	n, err := io.CopyBuffer(struct{ io.Writer }{w}, u.countReads(ctx, io.NewSectionReader(file, e.offset, e.length)), *buffer)
	if err != nil {
		return object.EmptyID, err
	}
	if n != e.length {
		return object.EmptyID, fmt.Errorf("%w: it has become shorter", errclass.Conflict)
	}
	return w.Result()
}

// countReads counts what is read, and ends with the context.
func (u *upload) countReads(ctx context.Context, from io.Reader) io.Reader {
	return readFunc(func(p []byte) (int, error) {
		if u.stop.Err() != nil {
			return 0, context.Cause(u.stop)
		}
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		n, err := from.Read(p)
		u.addRead(n)
		u.progress.addBytes(int64(n))
		return n, err
	})
}

type readFunc func([]byte) (int, error)

func (r readFunc) Read(p []byte) (int, error) { return r(p) }

// zeroBytes is the length of the content of zeroes that holes consist of. zeroFanOut of them are an object of its own, and so on.
const (
	zeroBytes    = 8 << 20
	zeroSplitter = "FIXED-8M"
	zeroFanOut   = 256
)

// zeroObjects makes objects of zeroes. Each is stored once.
type zeroObjects struct {
	w repo.RepositoryWriter

	mu   sync.Mutex
	byID map[int64]object.ID // by length
}

// append adds entries for length zeroes from offset on: as few as possible.
func (z *zeroObjects) append(ctx context.Context, entries []object.IndirectObjectEntry, offset, length int64) ([]object.IndirectObjectEntry, error) {
	for length > 0 {
		unit := min(length, zeroBytes)
		for unit == zeroBytes || unit%zeroBytes == 0 {
			if unit*zeroFanOut > length {
				break
			}
			unit *= zeroFanOut
		}
		id, err := z.get(ctx, unit)
		if err != nil {
			return nil, err
		}
		entries = append(entries, object.IndirectObjectEntry{Start: offset, Length: unit, Object: id})
		offset += unit
		length -= unit
	}
	return entries, nil
}

// get returns the object of length zeroes: at most zeroBytes, or that times a power of zeroFanOut.
func (z *zeroObjects) get(ctx context.Context, length int64) (object.ID, error) {
	z.mu.Lock()
	id, ok := z.byID[length]
	z.mu.Unlock()
	if ok {
		return id, nil
	}
	id, err := z.write(ctx, length)
	if err != nil {
		return object.EmptyID, fmt.Errorf("store %d zeroes: %w", length, err)
	}
	if length >= zeroBytes { // The others are as many as there are holes.
		z.mu.Lock()
		z.byID[length] = id
		z.mu.Unlock()
	}
	return id, nil
}

func (z *zeroObjects) write(ctx context.Context, length int64) (object.ID, error) {
	if length <= zeroBytes {
		return table.WriteObject(ctx, z.w, make([]byte, length), object.WriterOptions{Description: "ZEROES", Compressor: "s2-default", Splitter: zeroSplitter})
	}
	part, err := z.get(ctx, length/zeroFanOut)
	if err != nil {
		return object.EmptyID, err
	}
	entries := make([]object.IndirectObjectEntry, zeroFanOut)
	for i := range entries {
		entries[i] = object.IndirectObjectEntry{Start: int64(i) * (length / zeroFanOut), Length: length / zeroFanOut, Object: part}
	}
	return table.WriteRegion(ctx, z.w, entries)
}
