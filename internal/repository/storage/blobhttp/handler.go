package blobhttp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/kopia/kopia/repo/blob"

	"github.com/varvebackup/varve/internal/errclass"
)

const (
	// maxBlobBytes is the longest blob that is taken. Packs have some 20 MB; an index of many contents is longer.
	maxBlobBytes = 256 << 20
	// transfers is how many blobs are in memory at a time. Further requests wait.
	transfers = 6
)

// Handler serves a storage. It is safe for concurrent use.
type Handler struct {
	mux  http.ServeMux
	open func(context.Context) (blob.Storage, error)
	busy chan struct{}
}

// NewHandler returns a handler of the storage that open returns. open is called for each request and may fail; the failure is the answer.
func NewHandler(open func(context.Context) (blob.Storage, error)) *Handler {
	h := &Handler{open: open, busy: make(chan struct{}, transfers)}
	h.mux.HandleFunc("GET "+pingPath, func(http.ResponseWriter, *http.Request) {})
	for pattern, serve := range map[string]func(http.ResponseWriter, *http.Request, blob.Storage) error{
		"GET " + capacityPath:           h.capacity,
		"GET " + blobsPath:              h.list,
		"GET " + metadataPath + "/{id}": h.metadata,
		"GET " + blobsPath + "/{id}":    h.get,
		"PUT " + blobsPath + "/{id}":    h.put,
		"DELETE " + blobsPath + "/{id}": h.delete,
	} {
		h.mux.HandleFunc(pattern, h.with(serve))
	}
	return h
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.mux.ServeHTTP(w, r) }

// with opens the storage for a request, and answers with its error.
func (h *Handler) with(serve func(http.ResponseWriter, *http.Request, blob.Storage) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		err := checkID(r.PathValue("id"))
		var st blob.Storage
		if err == nil {
			st, err = h.open(r.Context())
		}
		if err == nil {
			err = serve(w, r, st)
		}
		if err != nil {
			f, status := newFailure(err)
			answer(w, status, f)
		}
	}
}

// checkID refuses names that lead out of a directory.
func checkID(id string) error {
	if strings.ContainsAny(id, "/\\\x00") || id == "." || id == ".." {
		return errclass.Errorf(errclass.Invalid, "no blob has the name %q", id)
	}
	return nil
}

// answer sends an object.
func answer(w http.ResponseWriter, status int, o any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(o) // A client that is gone hears nothing.
}

func (*Handler) capacity(w http.ResponseWriter, r *http.Request, st blob.Storage) error {
	c, err := st.GetCapacity(r.Context())
	if err != nil {
		return err
	}
	answer(w, http.StatusOK, capacity{Size: c.SizeB, Free: c.FreeB})
	return nil
}

// list answers with a line for each blob. The last line says how it ended.
func (*Handler) list(w http.ResponseWriter, r *http.Request, st blob.Storage) error {
	w.Header().Set("Content-Type", "application/jsonl")
	lines := json.NewEncoder(w)
	err := st.ListBlobs(r.Context(), blob.ID(r.URL.Query().Get(prefixParameter)), func(m blob.Metadata) error {
		return lines.Encode(wireMetadata(m))
	})
	last := metadata{End: true}
	if err != nil {
		f, _ := newFailure(err)
		last = metadata{Failure: &f}
	}
	_ = lines.Encode(last) // A client that is gone hears nothing.
	return nil
}

func (*Handler) metadata(w http.ResponseWriter, r *http.Request, st blob.Storage) error {
	m, err := st.GetMetadata(r.Context(), blob.ID(r.PathValue("id")))
	if err != nil {
		return err
	}
	answer(w, http.StatusOK, wireMetadata(m))
	return nil
}

func (h *Handler) get(w http.ResponseWriter, r *http.Request, st blob.Storage) error {
	offset, err := parseNumber(r, offsetParameter, 0)
	if err != nil {
		return err
	}
	length, err := parseNumber(r, lengthParameter, -1)
	if err != nil {
		return err
	}
	done, err := h.take(r.Context())
	if err != nil {
		return err
	}
	defer done()
	room := length
	if length < 0 {
		m, err := st.GetMetadata(r.Context(), blob.ID(r.PathValue("id")))
		if err != nil {
			return err
		}
		room = m.Length
	}
	data := newBuffer(room)
	if err := st.GetBlob(r.Context(), blob.ID(r.PathValue("id")), offset, length, data); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.Itoa(data.Len()))
	_, _ = w.Write(data.Bytes()) // A client that is gone hears nothing, and one that gets a part knows the length.
	return nil
}

// parseNumber reads a parameter. An absent one is otherwise.
func parseNumber(r *http.Request, name string, otherwise int64) (int64, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, errclass.Errorf(errclass.Invalid, "%s=%q: a number of bytes", name, text)
	}
	return n, nil
}

func (h *Handler) put(w http.ResponseWriter, r *http.Request, st blob.Storage) error {
	if r.ContentLength < 0 || r.ContentLength > maxBlobBytes {
		return errclass.Errorf(errclass.Invalid, "a blob of %d bytes: it must say its length, and have at most %d", r.ContentLength, maxBlobBytes)
	}
	done, err := h.take(r.Context())
	if err != nil {
		return err
	}
	defer done()
	data := make(content, r.ContentLength)
	if _, err := io.ReadFull(r.Body, data); err != nil {
		return errclass.Errorf(errclass.Transient, "the blob did not arrive: %w", err)
	}
	m := metadata{ID: r.PathValue("id"), Length: r.ContentLength}
	if err := st.PutBlob(r.Context(), blob.ID(m.ID), data, blob.PutOptions{GetModTime: &m.Time}); err != nil {
		return err
	}
	answer(w, http.StatusOK, m)
	return nil
}

func (*Handler) delete(w http.ResponseWriter, r *http.Request, st blob.Storage) error {
	if err := st.DeleteBlob(r.Context(), blob.ID(r.PathValue("id"))); err != nil && !errors.Is(err, blob.ErrBlobNotFound) {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// take waits until a blob may be in memory.
func (h *Handler) take(ctx context.Context) (done func(), err error) {
	select {
	case h.busy <- struct{}{}:
		return func() { <-h.busy }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// buffer takes a blob from the storage.
type buffer struct{ bytes.Buffer }

// newBuffer returns a buffer that does not grow, up to some bytes.
func newBuffer(length int64) *buffer {
	b := &buffer{}
	b.Grow(int(min(length, maxBlobBytes)) + bytes.MinRead) // which reading a file to its end needs
	return b
}

func (b *buffer) Length() int { return b.Len() }

// content is a blob on its way to the storage.
type content []byte

func (c content) Length() int { return len(c) }

func (c content) WriteTo(w io.Writer) (int64, error) {
	n, err := w.Write(c)
	return int64(n), err
}

func (c content) Reader() io.ReadSeekCloser { return readCloser{bytes.NewReader(c)} }

type readCloser struct{ *bytes.Reader }

func (readCloser) Close() error { return nil }
