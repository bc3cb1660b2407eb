// Package storagetest checks what every storage promises that holds a repository's blobs, or is wrapped around one that does.
package storagetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kopia/kopia/repo/blob"

	"github.com/varvebackup/varve/internal/repository/storage"
)

// Run checks the contract of blob.Storage as far as Varve and kopia rely on it. open returns an empty storage, and is called for
// each part of the contract.
func Run(t *testing.T, open func(*testing.T) blob.Storage) {
	t.Helper()
	for name, check := range map[string]func(*testing.T, blob.Storage){
		"content":       checkContent,
		"range":         checkRange,
		"overwrite":     checkOverwrite,
		"metadata":      checkMetadata,
		"list":          checkList,
		"list's end":    checkListEnd,
		"delete":        checkDelete,
		"not found":     checkNotFound,
		"ended context": checkEndedContext,
		"at once":       checkConcurrency,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check(t, open(t))
		})
	}
}

// noise returns bytes that do not repeat, the same ones for a seed.
func noise(seed byte, n int) []byte {
	out := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(out) // It never fails.
	return out
}

func put(t *testing.T, st blob.Storage, id blob.ID, data []byte) {
	t.Helper()
	if err := st.PutBlob(t.Context(), id, storage.Bytes(data), blob.PutOptions{}); err != nil {
		t.Fatalf("put %s: %v", id, err)
	}
}

// get reads a part of a blob, or the whole blob if length is negative. What the buffer held before must not be in the result.
func get(ctx context.Context, st blob.Storage, id blob.ID, offset, length int64) ([]byte, error) {
	var out storage.Buffer
	if _, err := out.WriteString("what was read before"); err != nil {
		return nil, err
	}
	if err := st.GetBlob(ctx, id, offset, length, &out); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// wantContent checks the content of a whole blob.
func wantContent(t *testing.T, st blob.Storage, id blob.ID, want []byte) {
	t.Helper()
	got, err := get(t.Context(), st, id, 0, -1)
	if err != nil {
		t.Errorf("get %s: %v", id, err)
	} else if !bytes.Equal(got, want) {
		t.Errorf("%s has %d other bytes, want %d", id, len(got), len(want))
	}
}

// wantAbsent checks that no request finds a blob.
func wantAbsent(t *testing.T, st blob.Storage, id blob.ID) {
	t.Helper()
	if _, err := get(t.Context(), st, id, 0, -1); !errors.Is(err, blob.ErrBlobNotFound) {
		t.Errorf("get %s: %v, want %v", id, err, blob.ErrBlobNotFound)
	}
	if _, err := get(t.Context(), st, id, 1, 1); !errors.Is(err, blob.ErrBlobNotFound) {
		t.Errorf("get a part of %s: %v, want %v", id, err, blob.ErrBlobNotFound)
	}
	if _, err := st.GetMetadata(t.Context(), id); !errors.Is(err, blob.ErrBlobNotFound) {
		t.Errorf("metadata of %s: %v, want %v", id, err, blob.ErrBlobNotFound)
	}
	if listed := list(t, st, id); len(listed) > 0 {
		t.Errorf("a list has %v", listed)
	}
}

// list returns the lengths of the blobs whose names begin with prefix.
func list(t *testing.T, st blob.Storage, prefix blob.ID) map[blob.ID]int64 {
	t.Helper()
	out := map[blob.ID]int64{}
	err := st.ListBlobs(t.Context(), prefix, func(m blob.Metadata) error {
		if _, twice := out[m.BlobID]; twice {
			t.Errorf("%s is listed twice", m.BlobID)
		}
		out[m.BlobID] = m.Length
		return nil
	})
	if err != nil {
		t.Fatalf("list %s*: %v", prefix, err)
	}
	return out
}

// names are blobs of every kind that a storage treats in a way of its own: packs, indexes, the format, records, logs and marks of
// deletion.
var names = []blob.ID{"p00", "q00", "xn0_00", "kopia.maintenance", "kopia.repository", storage.RecordPrefix + "00", storage.DeletingPrefix + "00", "_log_00"}

// A blob has the content that was put, whatever its kind and length.
func checkContent(t *testing.T, st blob.Storage) {
	for i, id := range names {
		for _, n := range []int{0, 1, 100, 1<<20 + 1} {
			id := blob.ID(fmt.Sprintf("%s-%d", id, n))
			data := noise(byte(i), n)
			put(t, st, id, data)
			wantContent(t, st, id, data)
		}
	}
}

// A part of a blob is exactly that part. A part that is not there is an error, and not a shorter part.
func checkRange(t *testing.T, st blob.Storage) {
	data := noise(1, 10_000)
	put(t, st, "p00", data)
	for _, r := range []struct{ offset, length int64 }{{0, 1}, {0, 10_000}, {1, 9_999}, {9_999, 1}, {4_000, 2_000}} {
		got, err := get(t.Context(), st, "p00", r.offset, r.length)
		if err != nil || !bytes.Equal(got, data[r.offset:r.offset+r.length]) {
			t.Errorf("%d bytes from %d on: %d bytes, %v", r.length, r.offset, len(got), err)
		}
	}
	for _, r := range []struct{ offset, length int64 }{{0, 10_001}, {9_999, 2}, {10_000, 1}, {20_000, 10}} {
		if got, err := get(t.Context(), st, "p00", r.offset, r.length); err == nil || errors.Is(err, blob.ErrBlobNotFound) {
			t.Errorf("%d bytes from %d on, beyond the end: %d bytes, %v", r.length, r.offset, len(got), err)
		}
	}
}

// A blob that is put again has the new content alone.
func checkOverwrite(t *testing.T, st blob.Storage) {
	for i, id := range names {
		for _, n := range []int{1_000, 10, 2_000} {
			data := noise(byte(i), n)
			put(t, st, id, data)
			wantContent(t, st, id, data)
			if diff := cmp.Diff(map[blob.ID]int64{id: int64(n)}, list(t, st, id)); diff != "" {
				t.Errorf("the list of %s: %s", id, diff)
			}
		}
	}
}

// clockTolerance is how far the clock of a storage may be off in a test.
const clockTolerance = time.Minute

// The metadata of a blob are its name, its length, and when it was put.
func checkMetadata(t *testing.T, st blob.Storage) {
	for _, id := range names {
		var stored time.Time
		began := time.Now()
		if err := st.PutBlob(t.Context(), id, storage.Bytes(noise(1, 1_234)), blob.PutOptions{GetModTime: &stored}); err != nil {
			t.Fatal(err)
		}
		m, err := st.GetMetadata(t.Context(), id)
		if err != nil || m.BlobID != id || m.Length != 1_234 {
			t.Errorf("metadata of %s: %+v, %v", id, m, err)
		}
		if m.Timestamp.Before(began.Add(-clockTolerance)) || m.Timestamp.After(time.Now().Add(clockTolerance)) {
			t.Errorf("%s was put at %s, between %s and %s", id, m.Timestamp, began, time.Now())
		}
		if !stored.Equal(m.Timestamp) {
			t.Errorf("%s was put at %s, and put says %s", id, m.Timestamp, stored)
		}
	}
}

// A list has the blobs whose names begin with the prefix, each once, and no others.
func checkList(t *testing.T, st blob.Storage) {
	want := map[blob.ID]int64{}
	for i, prefix := range []blob.ID{"p", "pa", "q"} {
		for n := range 20 {
			id := blob.ID(fmt.Sprintf("%s%02d", prefix, n))
			put(t, st, id, noise(byte(n), 1+i+n))
			want[id] = int64(1 + i + n)
		}
	}
	for _, prefix := range []blob.ID{"", "p", "pa", "pa0", "pa07", "q1", "x", "pa07x"} {
		of := map[blob.ID]int64{}
		for id, n := range want {
			if len(id) >= len(prefix) && id[:len(prefix)] == prefix {
				of[id] = n
			}
		}
		if diff := cmp.Diff(of, list(t, st, prefix)); diff != "" {
			t.Errorf("the list of %s*: %s", prefix, diff)
		}
	}
}

// A list ends with the first error of its caller, and returns that error.
func checkListEnd(t *testing.T, st blob.Storage) {
	for n := range 20 {
		put(t, st, blob.ID(fmt.Sprintf("p%02d", n)), []byte{1})
	}
	enough, calls := errors.New("enough"), 0
	err := st.ListBlobs(t.Context(), "p", func(blob.Metadata) error {
		calls++
		return enough
	})
	if !errors.Is(err, enough) || calls != 1 {
		t.Errorf("%d calls, %v, want 1 and %v", calls, err, enough)
	}
}

// A deleted blob is gone, and nothing else is. A blob that is gone can be deleted, and put again.
func checkDelete(t *testing.T, st blob.Storage) {
	for _, id := range names {
		put(t, st, id+"-1", []byte{1})
		put(t, st, id+"-2", []byte{2})
		for range 2 {
			if err := st.DeleteBlob(t.Context(), id+"-1"); err != nil {
				t.Errorf("delete %s: %v", id, err)
			}
		}
		wantAbsent(t, st, id+"-1")
		wantContent(t, st, id+"-2", []byte{2})
		put(t, st, id+"-1", []byte{3})
		wantContent(t, st, id+"-1", []byte{3})
	}
}

func checkNotFound(t *testing.T, st blob.Storage) {
	put(t, st, "p00", []byte{1})
	for _, id := range []blob.ID{"p", "p0", "p000", "q00", "xn0_00"} {
		if id == "p" || id == "p0" { // A list of it has p00.
			if _, err := st.GetMetadata(t.Context(), id); !errors.Is(err, blob.ErrBlobNotFound) {
				t.Errorf("metadata of %s: %v", id, err)
			}
			continue
		}
		wantAbsent(t, st, id)
	}
}

// A request whose context has ended succeeds or says so. It never leaves half a blob behind.
func checkEndedContext(t *testing.T, st blob.Storage) {
	was, next := noise(1, 100_000), noise(2, 200_000)
	put(t, st, "p00", was)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	requests := map[string]func() error{
		"put":       func() error { return st.PutBlob(ctx, "p01", storage.Bytes(next), blob.PutOptions{}) },
		"put again": func() error { return st.PutBlob(ctx, "p00", storage.Bytes(next), blob.PutOptions{}) },
		"get": func() error {
			got, err := get(ctx, st, "p00", 0, -1)
			if err == nil && !bytes.Equal(got, was) && !bytes.Equal(got, next) {
				err = fmt.Errorf("%d other bytes", len(got))
			}
			return err
		},
		"metadata": func() error { _, err := st.GetMetadata(ctx, "p00"); return err },
		"list":     func() error { return st.ListBlobs(ctx, "", func(blob.Metadata) error { return nil }) },
		"delete":   func() error { return st.DeleteBlob(ctx, "p02") },
	}
	for name, request := range requests {
		if err := request(); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v, want %v", name, err, context.Canceled)
		}
	}
	for id, contents := range map[blob.ID][][]byte{"p00": {was, next}, "p01": {next, nil}} {
		got, err := get(t.Context(), st, id, 0, -1)
		if err != nil && (!errors.Is(err, blob.ErrBlobNotFound) || id == "p00") {
			t.Errorf("get %s: %v", id, err)
		}
		if !slices.ContainsFunc(contents, func(c []byte) bool { return bytes.Equal(c, got) }) {
			t.Errorf("%s has %d other bytes", id, len(got))
		}
	}
}

// Requests of several goroutines do not disturb each other, not even with the same blob.
func checkConcurrency(t *testing.T, st blob.Storage) {
	var group sync.WaitGroup
	versions := [][]byte{noise(1, 10_000), noise(2, 20_000)}
	put(t, st, "pshared", versions[0])
	for worker := range 4 {
		group.Go(func() {
			for n := range 8 {
				id := blob.ID(fmt.Sprintf("p%d-%d", worker, n))
				put(t, st, id, noise(byte(n), 1_000))
				wantContent(t, st, id, noise(byte(n), 1_000))
				put(t, st, "pshared", versions[n%2])
				got, err := get(t.Context(), st, "pshared", 0, -1)
				if err != nil || !bytes.Equal(got, versions[0]) && !bytes.Equal(got, versions[1]) {
					t.Errorf("%d bytes of neither version, %v", len(got), err)
				}
				list(t, st, blob.ID(fmt.Sprintf("p%d-", worker)))
			}
		})
	}
	group.Wait()
	if got := list(t, st, "p"); len(got) != 33 {
		t.Errorf("%d blobs, want 33", len(got))
	}
}
