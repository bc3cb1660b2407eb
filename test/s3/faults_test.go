//go:build peers

package s3

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/varvebackup/varve/test/verdict"
)

// scene is a server, a proxy, and clients with and without the proxy.
type scene struct {
	*Server

	faults          *Faults
	direct, through *minio.Client // through tries once
}

// key is the object that the tests of faults use.
const key = "dir/key"

// everyScene runs check with and without TLS.
func everyScene(t *testing.T, check func(*testing.T, scene)) {
	t.Helper()
	for name, options := range map[string]Options{"plain": {}, "TLS": {TLS: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := Start(t, options)
			faults := StartFaults(t, server, 0)
			check(t, scene{Server: server, faults: faults, direct: server.Client(t), through: faults.Client(t, once)})
		})
	}
}

// put puts data through the proxy under a rule with one fault.
func (s scene) put(t *testing.T, fault Fault, data []byte) error {
	t.Helper()
	s.faults.Set(Rule{Method: http.MethodPut, Key: key, Times: 1, Fault: fault})
	_, err := s.through.PutObject(t.Context(), s.Bucket, key, bytes.NewReader(data), int64(len(data)), minio.PutObjectOptions{})
	if s.faults.Fired(0) != 1 {
		t.Errorf("%d faults", s.faults.Fired(0))
	}
	return err
}

func refused(t *testing.T, s scene, fault Fault, status int, want string) {
	t.Helper()
	err := s.put(t, fault, content(4, 1<<20))
	if r := minio.ToErrorResponse(err); r.StatusCode != status || r.Code != want || r.Message == "" {
		t.Errorf("%#v", err)
	}
	wantAbsent(t, s.direct, s.Bucket, key)
	s.faults.Set(Rule{Method: http.MethodHead, Fault: fault})
	if _, err := s.through.StatObject(t.Context(), s.Bucket, key, minio.StatObjectOptions{}); minio.ToErrorResponse(err).StatusCode != status {
		t.Errorf("%#v", err)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	everyScene(t, func(t *testing.T, s scene) {
		refused(t, s, InternalError, 500, "InternalError")
		refused(t, s, SlowDown, 503, "SlowDown")
	})
}

func TestDropReply(t *testing.T) {
	t.Parallel()
	everyScene(t, func(t *testing.T, s scene) {
		data := content(5, 1<<20)
		wantNoReply(t, s.put(t, DropReply, data))
		wantContent(t, s.direct, s.Bucket, key, data)
		s.faults.Set(Rule{Method: http.MethodDelete, Fault: DropReply})
		wantNoReply(t, s.through.RemoveObject(t.Context(), s.Bucket, key, minio.RemoveObjectOptions{}))
		wantAbsent(t, s.direct, s.Bucket, key)
	})
}

func TestCutRequest(t *testing.T) {
	t.Parallel()
	everyScene(t, func(t *testing.T, s scene) {
		wantNoReply(t, s.put(t, CutRequest, content(6, 4<<20)))
		wantAbsent(t, s.direct, s.Bucket, key)
		wantNoReply(t, s.put(t, CutRequest, nil))
		wantAbsent(t, s.direct, s.Bucket, key)
	})
}

func TestCutResponse(t *testing.T) {
	t.Parallel()
	everyScene(t, func(t *testing.T, s scene) {
		data := content(7, 1<<20)
		put(t, s.direct, s.Bucket, key, data, minio.PutObjectOptions{})
		s.faults.Set(Rule{Method: http.MethodGet, Times: 1, Fault: CutResponse}, Rule{Method: http.MethodHead, Fault: CutResponse})
		got, err := read(t.Context(), s.through, s.Bucket, key, "")
		if !errors.Is(err, io.ErrUnexpectedEOF) || !bytes.Equal(got, data[:len(data)/2]) {
			verdict.JudgeErrorf(t, errors.Is(err, io.ErrUnexpectedEOF), "%d bytes, %v", len(got), err)
		}
		wantContent(t, s.through, s.Bucket, key, data)
		_, err = s.through.StatObject(t.Context(), s.Bucket, key, minio.StatObjectOptions{})
		wantNoReply(t, err)
	})
}

func TestReset(t *testing.T) {
	t.Parallel()
	everyScene(t, func(t *testing.T, s scene) {
		wantNoReply(t, s.put(t, Reset, content(8, 1000)))
		wantAbsent(t, s.direct, s.Bucket, key)
		// It is undefined what a client sees that is still sending.
		s.faults.Set(Rule{Method: http.MethodGet, Fault: Reset})
		if _, err := read(t.Context(), s.through, s.Bucket, key, ""); !errors.Is(err, syscall.ECONNRESET) {
			t.Error(err)
		}
	})
}

func TestDelay(t *testing.T) {
	t.Parallel()
	everyScene(t, func(t *testing.T, s scene) {
		data := content(9, 1000)
		if err := s.put(t, Delay(time.Millisecond), data); err != nil {
			t.Error(err)
		}
		wantContent(t, s.direct, s.Bucket, key, data)
	})
}

// A client that goes away ends the wait, and so does the end of the test: goleak would find a waiting goroutine.
func TestDelayBeyondTheTest(t *testing.T) {
	t.Parallel()
	everyScene(t, func(t *testing.T, s scene) {
		delayed := make(chan struct{}, 2)
		s.faults.Set(Rule{Fault: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			delayed <- struct{}{}
			Delay(time.Hour)(w, r, next)
		}})
		ctx, cancel := context.WithCancel(t.Context())
		errs := make(chan error, 2)
		go func() {
			_, err := read(ctx, s.through, s.Bucket, key, "")
			errs <- err
		}()
		go func() {
			_, err := s.through.PutObject(ctx, s.Bucket, key, bytes.NewReader(content(10, 1000)), 1000, minio.PutObjectOptions{})
			errs <- err
		}()
		<-delayed
		<-delayed
		cancel()
		for range 2 {
			if err := <-errs; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
		wantAbsent(t, s.direct, s.Bucket, key)
	})
}

func TestClientsTryAgain(t *testing.T) {
	t.Parallel()
	everyScene(t, func(t *testing.T, s scene) {
		patient := s.faults.Client(t)
		data := content(11, 1<<20)
		for _, fault := range []Fault{InternalError, SlowDown, DropReply, CutRequest, Reset} {
			s.faults.Set(Rule{Method: http.MethodPut, Times: 1, Fault: fault})
			put(t, patient, s.Bucket, key, data, minio.PutObjectOptions{})
			if s.faults.Fired(0) != 1 {
				t.Errorf("%d faults", s.faults.Fired(0))
			}
			wantContent(t, s.direct, s.Bucket, key, data)
		}
	})
}

func TestOnlyWhatARuleNames(t *testing.T) {
	t.Parallel()
	everyScene(t, func(t *testing.T, s scene) {
		s.faults.Set(Rule{Method: http.MethodPut, Key: key + "/a", Skip: 1, Times: 1, Fault: SlowDown})
		var failed []string
		for _, name := range []string{"/b1", "/a1", "/a2", "/a3", "/b2"} {
			key := key + name
			if _, err := s.through.PutObject(t.Context(), s.Bucket, key, bytes.NewReader(nil), 0, minio.PutObjectOptions{}); err != nil {
				failed = append(failed, name)
			}
		}
		if !slices.Equal(failed, []string{"/a2"}) {
			t.Error(failed)
		}
	})
}
