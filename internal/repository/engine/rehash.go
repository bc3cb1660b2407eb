package engine

import (
	"crypto/subtle"
	"fmt"
	"sync"

	"github.com/kopia/kopia/repo/content"
	"github.com/zeebo/blake3"

	"github.com/varvebackup/varve/internal/errclass"
)

// Rehasher returns a function that compares a content with its ID, which is a keyed hash of it. In repositories with another hash
// it relies on kopia, which has authenticated the content.
func (c *Connection) Rehasher() func(content.ID, []byte) error {
	f := c.Kopia.ContentReader().ContentFormat()
	if f.GetHashFunction() != HashAlgorithm {
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
			return fmt.Errorf("%w: content %s has another hash", errclass.Corrupt, id)
		}
		return nil
	}
}
