package blobhttp

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"net/http"
	"strings"

	"github.com/varvebackup/varve/internal/errclass"
)

// Key is a secret of one client. The handler's process knows only its Digest, which an argument can pass: nobody can
// find the key from it, because the key is random. The zero value stands for none.
type Key struct{ text string }

// NewKey returns a new key.
func NewKey() Key { return Key{rand.Text()} }

// String hides the key.
func (Key) String() string { return "(hidden)" }

// GoString hides the key, too.
func (k Key) GoString() string { return k.String() }

// Digest returns the SHA-256 of the key in hexadecimal.
func (k Key) Digest() string { return digestOf(k.text) }

func digestOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// IsDigest reports whether text can be the digest of a key.
func IsDigest(text string) bool {
	sum, err := hex.DecodeString(text)
	return err == nil && len(sum) == sha256.Size
}

// bearer begins the header of a request that has a key.
const bearer = "Bearer "

// Protect returns a handler that passes on the requests whose key has the digest, and refuses all others.
func Protect(digest string, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key, ok := strings.CutPrefix(r.Header.Get("Authorization"), bearer)
		if !ok || subtle.ConstantTimeCompare([]byte(digestOf(key)), []byte(strings.ToLower(digest))) != 1 {
			f, status := newFailure(errclass.Errorf(errclass.Denied,
				"the request does not have the key of the command that the storage is served to"))
			answer(w, status, f)
			return
		}
		h.ServeHTTP(w, r)
	})
}
