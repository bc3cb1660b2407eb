package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kopia/kopia/repo/blob"

	"github.com/varvebackup/varve/internal/repository/storage/blobhttp"
)

// pipes is a listener whose connections are pipes in memory.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (*pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

func (p *pipes) dial(context.Context) (net.Conn, error) {
	ours, theirs := net.Pipe()
	p.conns <- theirs
	return ours, nil
}

// served returns a client of a storage that is served from the memory of this process, and what ends that.
func served(st blob.Storage) (_ *blobhttp.Client, end func()) {
	p := &pipes{conns: make(chan net.Conn, 64), closed: make(chan struct{})}
	server := &http.Server{Handler: blobhttp.NewHandler(func(context.Context) (blob.Storage, error) { return st, nil }), ReadHeaderTimeout: time.Hour}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = server.Serve(p) }()
	c := blobhttp.NewClient("shelf", p.dial)
	return c, func() { c.Shut(); _ = server.Close(); <-ended }
}

// storingStorage takes its time to store a blob.
type storingStorage struct {
	blob.Storage

	takes time.Duration
	puts  atomic.Int64
}

func (s *storingStorage) PutBlob(ctx context.Context, _ blob.ID, _ blob.Bytes, _ blob.PutOptions) error {
	s.puts.Add(1)
	select {
	case <-time.After(s.takes):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// What others have written to a file system takes minutes to become durable, and that is no stall. But nobody waits for good.
func TestServed_waitsForTheStorage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		takes time.Duration
		puts  int64
		err   error
	}{{6 * time.Minute, 1, nil}, {24 * time.Hour, StallAttempts, ErrUnreachable}} {
		synctest.Test(t, func(t *testing.T) {
			slow := &storingStorage{takes: c.takes}
			client, end := served(slow)
			defer end()
			began := time.Now()
			if err := newServed(client).PutBlob(t.Context(), "x", Bytes("content"), blob.PutOptions{}); !errors.Is(err, c.err) {
				t.Error(err)
			}
			if took := time.Since(began); slow.puts.Load() != c.puts || took > time.Hour/2 {
				t.Errorf("%d attempts in %s", slow.puts.Load(), took)
			}
		})
	}
}

// endlessBlob is a blob of any length whose bytes do not come. asked is closed when it is about to be sent.
type endlessBlob struct {
	blob.Bytes
	io.ReadSeekCloser

	length       int
	once         sync.Once
	asked, ended chan struct{}
}

func newEndlessBlob(length int) *endlessBlob {
	return &endlessBlob{length: length, asked: make(chan struct{}), ended: make(chan struct{})}
}

func (b *endlessBlob) Length() int               { return b.length }
func (b *endlessBlob) Reader() io.ReadSeekCloser { return b }
func (*endlessBlob) Close() error                { return nil }

func (b *endlessBlob) Read([]byte) (int, error) {
	b.once.Do(func() { close(b.asked) })
	<-b.ended
	return 0, io.ErrUnexpectedEOF
}

// A blob for which there is no memory is not sent: on a forwarded port it would hold up those that have to go first. That it waits is no stall.
func TestServed_sendsBlobsInTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client, end := served(&storingStorage{})
		defer end()
		first, second := newEndlessBlob(200<<20), newEndlessBlob(1)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		firstCtx, cancelFirst := context.WithCancel(ctx)
		defer cancelFirst()
		errs := make(chan error, 2)
		go func() { errs <- client.PutBlob(firstCtx, "p1", first, blob.PutOptions{}) }()
		<-first.asked
		go func() { errs <- newServed(client).PutBlob(ctx, "p2", second, blob.PutOptions{}) }()
		time.Sleep(time.Hour)
		select {
		case <-second.asked:
			t.Error("a blob was sent that nobody reads")
		case err := <-errs:
			t.Error(err)
			return
		default:
		}
		cancelFirst()
		close(first.ended)
		<-second.asked
		cancel()
		close(second.ended)
		for range 2 {
			if err := <-errs; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
	})
}

// listedStorage lists many blobs, and counts lists.
type listedStorage struct {
	blob.Storage

	lists int
}

const listedBlobs = 1000

func (s *listedStorage) ListBlobs(_ context.Context, _ blob.ID, call func(blob.Metadata) error) error {
	s.lists++
	for i := range listedBlobs {
		if err := call(blob.Metadata{BlobID: blob.ID(fmt.Sprint("p", i))}); err != nil {
			return err
		}
	}
	return nil
}

func (*listedStorage) DeleteBlob(context.Context, blob.ID) error { return nil }

// oneAtATime has the answers of all requests in one line, as a forwarded port has them: nothing comes after what nobody reads.
type oneAtATime struct {
	http.Handler

	line chan struct{}
}

func (o *oneAtATime) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o.line <- struct{}{}
	defer func() { <-o.line }()
	o.Handler.ServeHTTP(w, r)
}

// Whoever is told of a blob may make requests: the rest of the list is not in their way.
func TestServed_listsBeforeItTells(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &pipes{conns: make(chan net.Conn, 64), closed: make(chan struct{})}
		h := blobhttp.NewHandler(func(context.Context) (blob.Storage, error) { return &listedStorage{}, nil })
		server := &http.Server{Handler: &oneAtATime{h, make(chan struct{}, 1)}, ReadHeaderTimeout: time.Hour}
		ended := make(chan struct{})
		go func() { defer close(ended); _ = server.Serve(p) }()
		c := blobhttp.NewClient("shelf", p.dial)
		defer func() { c.Shut(); _ = server.Close(); <-ended }()
		st, n := newServed(c), 0
		err := st.ListBlobs(t.Context(), "p", func(m blob.Metadata) error {
			n++
			return st.DeleteBlob(t.Context(), m.BlobID)
		})
		if err != nil || n != listedBlobs {
			t.Errorf("%d blobs: %v", n, err)
		}
	})
}

// A list that is cut off is asked for again, and nobody is told of a blob twice.
func TestServed_asksAgainForAList(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		cuts, lists, told int
		err               error
	}{{0, 1, listedBlobs, nil}, {2, 3, listedBlobs, nil}, {3, 3, 0, blobhttp.ErrCutOff}} {
		st, cuts := &listedStorage{}, c.cuts
		h := blobhttp.NewHandler(func(context.Context) (blob.Storage, error) { return st, nil })
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if cuts--; cuts < 0 {
				h.ServeHTTP(w, r)
				return
			}
			record := httptest.NewRecorder()
			h.ServeHTTP(record, r)
			_, _ = io.Copy(w, bytes.NewReader(record.Body.Bytes()[:record.Body.Len()/2]))
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}))
		client := blobhttp.NewClient("shelf", func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", server.Listener.Addr().String())
		})
		told := 0
		err := newServed(client).ListBlobs(t.Context(), "p", func(blob.Metadata) error { told++; return nil })
		if !errors.Is(err, c.err) || told != c.told || st.lists != c.lists {
			t.Errorf("%d cuts: told of %d in %d lists: %v", c.cuts, told, st.lists, err)
		}
		client.Shut()
		server.Close()
	}
}
