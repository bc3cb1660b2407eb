package blobhttp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kopia/kopia/repo/blob"

	"github.com/varvebackup/varve/internal/errclass"
)

// Only the client that has the key reaches the storage, and what others send is not even read.
func TestProtect_takesTheKeyAlone(t *testing.T) {
	t.Parallel()
	key := NewKey()
	served := 0
	count := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served++ })
	server := httptest.NewServer(Protect(key.Digest(), count))
	t.Cleanup(server.Close)
	dial := func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", server.Listener.Addr().String())
	}
	for name, c := range map[string]*Client{
		"no key": NewClient("shelf", dial), "another key": NewClient("shelf", dial).Authorize(NewKey()),
		"an empty key":        NewClient("shelf", dial).Authorize(Key{}),
		"the digest as a key": NewClient("shelf", dial).Authorize(Key{key.Digest()}),
	} {
		t.Cleanup(c.Shut)
		if err := c.Ping(t.Context()); !errors.Is(err, errclass.Denied) {
			t.Errorf("%s: %v", name, err)
		}
		if err := c.DeleteBlob(t.Context(), blob.ID("p1")); !errors.Is(err, errclass.Denied) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if served != 0 {
		t.Errorf("%d requests of strangers were served", served)
	}
	c := NewClient("shelf", dial).Authorize(key)
	t.Cleanup(c.Shut)
	if err := c.Ping(t.Context()); err != nil || served != 1 {
		t.Errorf("%v, %d requests", err, served)
	}
}

// A digest that is missing opens nothing.
func TestProtect_withoutADigest(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, pingPath, nil)
	r.Header.Set("Authorization", bearer)
	Protect("", http.NotFoundHandler()).ServeHTTP(w, r)
	if w.Code != errclass.HTTPStatus(errclass.Denied) || IsDigest("") || !IsDigest(NewKey().Digest()) {
		t.Error(w.Code)
	}
}

func TestKey_isNotShown(t *testing.T) {
	t.Parallel()
	key := NewKey()
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		if text := fmt.Sprintf(format, key); strings.Contains(text, key.text) {
			t.Errorf("%s shows it", format)
		}
	}
}
