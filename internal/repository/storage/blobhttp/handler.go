package blobhttp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/kopia/kopia/repo/blob"
	"golang.org/x/sync/semaphore"

	"github.com/varvebackup/varve/internal/errclass"
)

const (
	// maxBlobBytes is the longest blob that is taken. Packs have some 20 MB; an index of many contents is longer.
	maxBlobBytes = 256 << 20
	// maxPutBytes is how many bytes of blobs are on their way to the storage at a time. A longer blob is alone.
	maxPutBytes = 192 << 20
	// tellInterval is how often the client of a request that takes long hears of it, and maxStoring for how long: making a file system durable
	// takes minutes if others have written much to it, and forever if its server is gone.
	tellInterval = 20 * time.Second
	maxStoring   = 5 * time.Minute
)

// Handler serves a storage. It is safe for concurrent use.
type Handler struct {
	mux  http.ServeMux
	open func(context.Context) (blob.Storage, error)
	// puts has the bytes of the blobs that are being put. They are in memory.
	puts *semaphore.Weighted
}

// NewHandler returns a handler of the storage that open returns. open is called for each request and may fail; the failure is the answer.
func NewHandler(open func(context.Context) (blob.Storage, error)) *Handler {
	h := &Handler{open: open, puts: semaphore.NewWeighted(maxPutBytes)}
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
	id := blob.ID(r.PathValue("id"))
	m, err := st.GetMetadata(r.Context(), id)
	if err != nil {
		return err
	}
	bytes := length
	switch {
	case length < 0:
		bytes = m.Length
	case offset > m.Length || length > m.Length-offset:
		return errclass.Errorf(blob.ErrInvalidRange, "%d bytes from %d on of blob %s, which has %d", length, offset, id, m.Length)
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(bytes, 10))
	out := &answerBuffer{w: w}
	err = st.GetBlob(r.Context(), id, offset, length, out)
	if err != nil && out.sent > 0 {
		panic(http.ErrAbortHandler) // This cuts the answer off, and the client asks again.
	}
	if err != nil {
		w.Header().Del("Content-Length")
	}
	return err
}

// answerBuffer sends a blob as the storage reads it. Blobs may be longer than the memory that there is.
type answerBuffer struct {
	w    http.ResponseWriter
	sent int64
	// again is set when the storage reads the blob again after a part of it was sent.
	again bool
}

func (b *answerBuffer) Length() int { return int(b.sent) }
func (b *answerBuffer) Reset()      { b.again = b.sent > 0 }

func (b *answerBuffer) Write(data []byte) (int, error) {
	if b.again {
		return 0, errSentPartly
	}
	n, err := b.w.Write(data)
	b.sent += int64(n)
	return n, err
}

var errSentPartly = errors.New("a part of the blob is sent already")

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
	// No byte of the blob comes before it is read. See Client.
	reserved := min(r.ContentLength, maxPutBytes)
	err := tellWhile(w, math.MaxInt64, func() error { return h.puts.Acquire(r.Context(), reserved) })
	if err != nil {
		return err
	}
	defer h.puts.Release(reserved)
	data := make(content, r.ContentLength)
	if _, err := io.ReadFull(r.Body, data); err != nil {
		return errclass.Errorf(errclass.Transient, "the blob did not arrive: %w", err)
	}
	m := metadata{ID: r.PathValue("id"), Length: r.ContentLength}
	err = tellWhile(w, maxStoring, func() error {
		return st.PutBlob(r.Context(), blob.ID(m.ID), data, blob.PutOptions{GetModTime: &m.Time})
	})
	if err != nil {
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

// tellWhile calls f, and tells the client at times that the request is being worked on, at most for the limit. f must not read or answer it.
func tellWhile(w http.ResponseWriter, limit time.Duration, f func() error) error {
	ended, told := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(told)
		ticker := time.NewTicker(tellInterval)
		defer ticker.Stop()
		last := time.NewTimer(limit)
		defer last.Stop()
		for {
			select {
			case <-ticker.C:
				w.WriteHeader(http.StatusProcessing)
			case <-last.C:
				return
			case <-ended:
				return
			}
		}
	}()
	defer func() { close(ended); <-told }()
	return f()
}

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
