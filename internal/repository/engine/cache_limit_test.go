package engine

import (
	"context"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/object"
)

// A pod has an emptyDir for its cache, and is evicted when that is full. kopia alone removes nothing that is younger
// than a day, which no such pod gets.
func TestCacheLimit_holdsWhileTheCacheIsNew(t *testing.T) {
	t.Parallel()
	const object64KiB, objects, limit = 64 << 10, 128, 2 << 20
	for _, bounded := range []bool{false, true} {
		directory := filepath.Join(t.TempDir(), "cache")
		o := ConnectOptions{CacheDirectory: directory, CacheBytes: limit / 2}
		if bounded {
			o.CacheLimitBytes = limit
		}
		c, _ := formatted(t, varveFormat, o)
		for _, id := range putObjects(t, c, objects, object64KiB) {
			readObject(t, c, id)
		}
		bytes := directoryBytes(t, filepath.Join(directory, "contents"))
		switch {
		case bounded && bytes > limit/2+object64KiB:
			t.Errorf("the cache has %d bytes of data, and its limit is %d", bytes, limit/2)
		case !bounded && bytes < objects*object64KiB:
			t.Errorf("the cache has %d bytes of data: this test does not fill it", bytes)
		}
	}
}

// putObjects stores objects of random bytes.
func putObjects(t *testing.T, c *Connection, n, bytes int) (ids []object.ID) {
	t.Helper()
	random := rand.NewChaCha8([32]byte{1})
	err := c.Change(t.Context(), "test", func(ctx context.Context, w repo.DirectRepositoryWriter) error {
		data := make([]byte, bytes)
		for range n {
			_, _ = random.Read(data)
			o := w.NewObjectWriter(ctx, object.WriterOptions{Splitter: "FIXED-128K"})
			if _, err := o.Write(data); err != nil {
				return err
			}
			id, err := o.Result()
			if err != nil {
				return err
			}
			ids = append(ids, id)
			if err := o.Close(); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

func readObject(t *testing.T, c *Connection, id object.ID) {
	t.Helper()
	r, err := c.Kopia.OpenObject(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, r); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
}

func directoryBytes(t *testing.T, directory string) (sum int64) {
	t.Helper()
	err := filepath.Walk(directory, func(_ string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().IsRegular() {
			sum += info.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return sum
}
