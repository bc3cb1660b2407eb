package storage

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/blob/s3"

	"github.com/varvebackup/varve/test/verdict"
)

// stallingServer is a fake S3 server with one blob. It accepts requests, and then falls silent.
type stallingServer struct {
	content []byte
	// silent is how many more requests it leaves without an answer after half of the blob was moved. asked is how many requests
	// there were.
	silent, asked atomic.Int64
	// heard is told of each request, if it has room. ended lets the handlers go.
	heard, ended chan struct{}

	mu  sync.Mutex
	got []byte
}

func newStallingServer(t *testing.T) (*stallingServer, blob.Storage) {
	t.Helper()
	s := &stallingServer{content: make([]byte, 2<<20), heard: make(chan struct{}, 1), ended: make(chan struct{})}
	_, _ = rand.NewChaCha8([32]byte{1}).Read(s.content)
	server := httptest.NewServer(s)
	t.Cleanup(func() { close(s.ended); server.Close() })
	st, err := s3.New(t.Context(), &s3.Options{
		BucketName: "backups", Endpoint: strings.TrimPrefix(server.URL, "http://"), Region: "r", DoNotUseTLS: true, AccessKeyID: "key", SecretAccessKey: "secret",
	}, false)
	if err != nil {
		t.Fatal(err)
	}
	return s, st
}

func (s *stallingServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	list := r.Method == http.MethodGet && r.URL.Query().Has("prefix")
	if !list && !strings.HasSuffix(r.URL.Path, "/p1") {
		w.WriteHeader(http.StatusNotFound) // the client's own settings
		return
	}
	s.asked.Add(1)
	select {
	case s.heard <- struct{}{}:
	default:
	}
	silent := s.silent.Add(-1) >= 0
	answer := s.content
	if list {
		answer = fmt.Appendf(nil, `<ListBucketResult><Name>backups</Name><KeyCount>1</KeyCount><Contents><Key>p1</Key><Size>%d</Size><LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents></ListBucketResult>`, len(s.content))
	}
	switch {
	case silent && r.Method == http.MethodPut:
		_, _ = io.CopyN(io.Discard, r.Body, r.ContentLength/2)
	case silent && r.Method == http.MethodGet && !list:
		w.Header().Set("Content-Length", fmt.Sprint(len(answer)))
		_, _ = w.Write(answer[:len(answer)/2])
		_ = http.NewResponseController(w).Flush()
	}
	if silent {
		<-s.ended
		return
	}
	if strings.HasPrefix(r.Header.Get("X-Amz-Content-Sha256"), "STREAMING-") {
		data, err := signedChunks(r.Body)
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		s.mu.Lock()
		s.got = data
		s.mu.Unlock()
	}
	w.Header().Set("ETag", `"00000000000000000000000000000000"`)
	w.Header().Set("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		w.Header().Set("Content-Length", fmt.Sprint(len(answer)))
		_, _ = w.Write(answer)
	}
}

// signedChunks returns the content of a body that is signed piece by piece, as it is without TLS (AWS Signature Version 4,
// "Signature calculations for the Authorization header: transferring a payload in multiple chunks").
func signedChunks(body io.Reader) (out []byte, err error) {
	r := bufio.NewReader(body)
	for {
		var n int
		head, err := r.ReadString('\n')
		if err == nil {
			_, err = fmt.Sscanf(head, "%x;", &n)
		}
		if err != nil || n == 0 {
			return out, err
		}
		chunk := make([]byte, n+len("\r\n"))
		if _, err := io.ReadFull(r, chunk); err != nil {
			return nil, err
		}
		out = append(out, chunk[:n]...)
	}
}

// requests are what a storage can be asked for.
var requests = map[string]func(context.Context, blob.Storage, *stallingServer) error{
	"put": func(ctx context.Context, st blob.Storage, s *stallingServer) error {
		if err := st.PutBlob(ctx, "p1", Bytes(s.content), blob.PutOptions{}); err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		return sameBytes(s.got, s.content)
	},
	"get": func(ctx context.Context, st blob.Storage, s *stallingServer) error {
		var out Buffer
		if err := st.GetBlob(ctx, "p1", 0, -1, &out); err != nil {
			return err
		}
		return sameBytes(out.Bytes(), s.content)
	},
	"metadata": func(ctx context.Context, st blob.Storage, s *stallingServer) error {
		m, err := st.GetMetadata(ctx, "p1")
		if err == nil && m.Length != int64(len(s.content)) {
			err = fmt.Errorf("%+v", m)
		}
		return err
	},
	"list": func(ctx context.Context, st blob.Storage, _ *stallingServer) error {
		all, err := blob.ListAllBlobs(ctx, st, "p")
		if err == nil && (len(all) != 1 || all[0].BlobID != "p1") {
			err = fmt.Errorf("%+v", all)
		}
		return err
	},
	"delete": func(ctx context.Context, st blob.Storage, _ *stallingServer) error { return st.DeleteBlob(ctx, "p1") },
	"extend": func(ctx context.Context, st blob.Storage, _ *stallingServer) error {
		return st.ExtendBlobRetention(ctx, "p1", blob.ExtendOptions{RetentionMode: blob.Governance, RetentionPeriod: time.Hour})
	},
}

func sameBytes(got, want []byte) error {
	if !bytes.Equal(got, want) {
		return verdict.Error("%d other bytes, of %d", len(got), len(want))
	}
	return nil
}

// A server that stops answering in the middle of anything is an error. One that has only lost a connection is not noticed.
func TestStallDetector_endsWhatNeverMoves(t *testing.T) {
	t.Parallel()
	for name, request := range requests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, raw := newStallingServer(t)
			st := NewStallDetector(raw, time.Second)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()

			s.silent.Store(1)
			if err := request(ctx, st, s); err != nil {
				t.Errorf("silent once: %v", err)
			}

			s.silent.Store(1 << 30)
			s.asked.Store(0)
			err := request(ctx, st, s)
			if !errors.Is(err, ErrUnreachable) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("silent: %v", err)
			} else if text := err.Error(); !strings.Contains(text, "/backups/") || !strings.Contains(text, "for 1s") || strings.Contains(text, "secret") {
				t.Errorf("silent: %v", err)
			}
			if n := s.asked.Load(); n != StallAttempts {
				t.Errorf("it was asked %d times", n)
			}

			// If the user ends it, that is not the server's fault.
			ended, end := context.WithCancel(ctx)
			for len(s.heard) > 0 {
				<-s.heard
			}
			go func() {
				select {
				case <-s.heard:
				case <-ctx.Done():
				}
				end()
			}()
			if err := request(ended, NewStallDetector(raw, time.Hour), s); !errors.Is(err, context.Canceled) || errors.Is(err, ErrUnreachable) {
				t.Errorf("cancelled: %v", err)
			}
		})
	}
}

// slowStorage is a fake storage: each step takes an hour, and blobs are moved in steps of a byte.
type slowStorage struct {
	blob.Storage

	steps int
	// refuses makes requests fail.
	refuses error
}

func (s *slowStorage) ConnectionInfo() blob.ConnectionInfo {
	return blob.ConnectionInfo{Config: &s3.Options{Endpoint: "slow", BucketName: "b"}}
}

func (s *slowStorage) step(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Hour):
		return s.refuses
	}
}

func (s *slowStorage) PutBlob(ctx context.Context, _ blob.ID, data blob.Bytes, _ blob.PutOptions) error {
	r, ok := data.Reader().(io.ReaderAt)
	if !ok {
		return errors.New("the reader has no ReadAt any more")
	}
	for i := range s.steps {
		if _, err := r.ReadAt(make([]byte, 1), int64(i)); err != nil {
			return err
		}
		if err := s.step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (s *slowStorage) GetBlob(ctx context.Context, _ blob.ID, _, _ int64, out blob.OutputBuffer) error {
	for range s.steps {
		if err := s.step(ctx); err != nil {
			return err
		}
		if _, err := out.Write([]byte{1}); err != nil {
			return err
		}
	}
	return nil
}

func (s *slowStorage) GetMetadata(ctx context.Context, _ blob.ID) (blob.Metadata, error) {
	for range s.steps { // each step is a request that is refused and repeated
		if err := s.step(ctx); err != nil {
			return blob.Metadata{}, err
		}
		httptrace.ContextClientTrace(ctx).GotFirstResponseByte()
	}
	return blob.Metadata{}, nil
}

func (s *slowStorage) ListBlobs(ctx context.Context, _ blob.ID, call func(blob.Metadata) error) error {
	for i := range s.steps {
		if err := s.step(ctx); err != nil {
			return err
		}
		if err := call(blob.Metadata{BlobID: blob.ID(fmt.Sprint(i))}); err != nil {
			return err
		}
	}
	return nil
}

// What moves goes on, however long it takes.
func TestStallDetector_letsWhatMovesGoOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := NewStallDetector(&slowStorage{steps: 100}, 61*time.Minute)
		if err := st.PutBlob(t.Context(), "p1", Bytes(make([]byte, 100)), blob.PutOptions{}); err != nil {
			t.Errorf("put: %v", err)
		}
		var out Buffer
		if err := st.GetBlob(t.Context(), "p1", 0, -1, &out); err != nil || out.Len() != 100 {
			t.Errorf("get: %d bytes, %v", out.Len(), err)
		}
		if _, err := st.GetMetadata(t.Context(), "p1"); err != nil {
			t.Errorf("metadata: %v", err)
		}
		n := 0
		err := st.ListBlobs(t.Context(), "", func(blob.Metadata) error {
			time.Sleep(24 * time.Hour) // the lister may take longer than the storage
			n++
			return nil
		})
		if err != nil || n != 100 {
			t.Errorf("list: %d, %v", n, err)
		}
	})
}

// What is refused is not tried again here, and a list that stalls in the middle is not started again.
func TestStallDetector_doesNotRepeatRefusals(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		refused := errors.New("refused")
		st := NewStallDetector(&slowStorage{steps: 1, refuses: refused}, 2*time.Hour)
		began := time.Now()
		if err := st.GetBlob(t.Context(), "p1", 0, -1, &Buffer{}); !errors.Is(err, refused) || time.Since(began) != time.Hour {
			t.Errorf("refused: %v after %s", err, time.Since(began))
		}
		n := 0
		slow := &slowStorage{steps: 2}
		err := NewStallDetector(stallsAfter{slow, 1}, 2*time.Hour).ListBlobs(t.Context(), "", func(blob.Metadata) error { n++; return nil })
		if !errors.Is(err, ErrUnreachable) || n != 1 {
			t.Errorf("a list that stalls: %d blobs, %v", n, err)
		}
	})
}

// stallsAfter is a fake storage whose lists stall after some blobs.
type stallsAfter struct {
	*slowStorage

	blobs int
}

func (s stallsAfter) ListBlobs(ctx context.Context, prefix blob.ID, call func(blob.Metadata) error) error {
	n := 0
	err := s.slowStorage.ListBlobs(ctx, prefix, func(m blob.Metadata) error {
		if n++; n > s.blobs {
			<-ctx.Done()
			return ctx.Err()
		}
		return call(m)
	})
	return err
}
