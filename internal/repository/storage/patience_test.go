package storage_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kopia/kopia/repo/blob"
	"github.com/minio/minio-go/v7"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/storage"
	"github.com/varvebackup/varve/internal/repository/storage/advice"
	"github.com/varvebackup/varve/internal/repository/storage/advice/advicetest"
)

var errRefused = &url.Error{
	Op: "Put", URL: "http://10.0.0.1",
	Err: &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED},
}

// unanswered fails requests with what fail returns. Each list tells of one blob before it fails if tells is set.
type unanswered struct {
	blob.Storage

	fail  func() error
	tells bool
}

func (s *unanswered) PutBlob(context.Context, blob.ID, blob.Bytes, blob.PutOptions) error {
	return s.fail()
}

func (s *unanswered) ListBlobs(_ context.Context, _ blob.ID, call func(blob.Metadata) error) error {
	if s.tells {
		if err := call(blob.Metadata{BlobID: "p1"}); err != nil {
			return err
		}
	}
	return s.fail()
}

// A storage is away for three and a half hours, and the request is sent again until it is back: at first after a
// second, then once a minute. Whoever shows it is told of the beginning and of the end.
func TestPatience_waitsForTheStorage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var attempts, pauses []time.Duration
		var told []string
		st := storage.NewPatient(&unanswered{fail: func() error {
			attempts = append(attempts, time.Since(began))
			if time.Since(began) < 3*time.Hour+30*time.Minute {
				return errRefused
			}
			return nil
		}}, &storage.Patience{Limit: 4 * time.Hour, Notify: func(o *storage.Outage) {
			if o == nil {
				told = append(told, "over")
			} else if len(told) == 0 {
				told = append(told, o.Since.Sub(began).String()+" "+o.Reason)
			}
		}})
		if err := st.PutBlob(t.Context(), "p1", storage.Bytes("x"), blob.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		for i, at := range attempts[1:] {
			pauses = append(pauses, at-attempts[i])
		}
		var want []time.Duration
		for _, seconds := range []float64{1, 2, 4, 8, 16, 32, 60, 60} {
			want = append(want, time.Duration(seconds*1e9))
		}
		if diff := cmp.Diff(want, pauses[:len(want)]); diff != "" || pauses[len(pauses)-1] != time.Minute {
			t.Errorf("pauses: %s", diff)
		}
		if diff := cmp.Diff([]string{"0s connection refused", "over"}, told); diff != "" {
			t.Error(diff)
		}
	})
}

// silent leaves requests without an answer until their context ends.
type silent struct{ blob.Storage }

func (silent) PutBlob(ctx context.Context, _ blob.ID, _ blob.Bytes, _ blob.PutOptions) error {
	<-ctx.Done()
	return ctx.Err()
}

func (silent) ConnectionInfo() blob.ConnectionInfo { return blob.ConnectionInfo{Type: "test"} }

// A storage that accepts requests and says nothing is known to be away after the first attempt that stalls. Nobody was
// told until three had, after six minutes.
func TestPatience_tellsOfASilentStorageAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var told []string
		patience := &storage.Patience{Limit: 4 * time.Hour, Notify: func(o *storage.Outage) {
			if o != nil {
				told = append(told, fmt.Sprintf("after %s: since %s", time.Since(began), o.Since.Sub(began)))
				cancel()
			}
		}}
		st := storage.NewPatient(storage.NewStallDetector(silent{}, storage.StallLimit), patience)
		if err := st.PutBlob(ctx, "p1", storage.Bytes("x"), blob.PutOptions{}); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if diff := cmp.Diff([]string{"after 2m0s: since 0s"}, told); diff != "" {
			t.Error(diff)
		}
	})
}

func TestPatience_givesUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		patience := &storage.Patience{Limit: 4 * time.Hour}
		st := storage.NewPatient(&unanswered{fail: func() error { return errRefused }}, patience)
		// Whoever waits for the same storage further out does not begin anew.
		err := patience.Do(t.Context(), func() error {
			return st.PutBlob(t.Context(), "p1", storage.Bytes("x"),
				blob.PutOptions{})
		})
		if !errors.Is(err, storage.ErrGivenUp) || errclass.Of(err) != errclass.Transient ||
			!strings.HasPrefix(err.Error(), "the storage did not answer for 4h0m0s: ") ||
			!strings.Contains(err.Error(), "connection refused") {
			t.Error(err)
		}
		if took := time.Since(began); took != 4*time.Hour {
			t.Errorf("it took %s", took)
		}
	})
}

// A cancelled request does not wait, and an error that stays is returned at once.
func TestPatience_endsAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		patience := &storage.Patience{Limit: 4 * time.Hour}
		ctx, cancel := context.WithCancelCause(t.Context())
		reason := errors.New("canceled by somebody")
		time.AfterFunc(time.Hour, func() { cancel(reason) })
		err := storage.NewPatient(&unanswered{fail: func() error { return errRefused }}, patience).PutBlob(ctx, "p1",
			storage.Bytes("x"), blob.PutOptions{})
		if took := time.Since(began); took != time.Hour || !errors.Is(err, reason) {
			t.Errorf("%v after %s", err, took)
		}
		for _, lasting := range []error{errclass.Denied, storage.ErrFull, blob.ErrBlobNotFound, fs.ErrPermission} {
			began := time.Now()
			err := storage.NewPatient(&unanswered{fail: func() error { return lasting }},
				patience).PutBlob(t.Context(), "p1", storage.Bytes("x"), blob.PutOptions{})
			if !errors.Is(err, lasting) || time.Since(began) > 0 {
				t.Errorf("%v after %s, want %v", err, time.Since(began), lasting)
			}
		}
	})
}

// A list is asked for again only if it has told of nothing yet.
func TestPatience_listsNothingTwice(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, tells := range []bool{false, true} {
			asked, told := 0, 0
			st := storage.NewPatient(&unanswered{tells: tells, fail: func() error {
				if asked++; asked < 3 {
					return errRefused
				}
				return nil
			}}, &storage.Patience{Limit: time.Hour})
			err := st.ListBlobs(t.Context(), "p", func(blob.Metadata) error { told++; return nil })
			if tells && (!errors.Is(err, syscall.ECONNREFUSED) || asked != 1 || told != 1) || !tells &&
				(err != nil || asked != 3) {
				t.Errorf("tells %t: %d requests, %d blobs, %v", tells, asked, told, err)
			}
		}
	})
}

// What is said to be silent is waited for, and nothing else is.
func TestIsUnavailable(t *testing.T) {
	t.Parallel()
	for _, c := range advicetest.Cases() {
		silent := c.Cause == advice.Silent || c.Cause == advice.RoleSilent
		if storage.IsUnavailable(c.Err) && !silent {
			t.Errorf("%s: it is waited for", c.Name)
		}
	}
	answer := func(status int, code string) error {
		return fmt.Errorf("unable to complete PutBlob(p1) despite 10 retries: %w",
			minio.ErrorResponse{StatusCode: status, Code: code, Message: "x"})
	}
	request := func(err error) error { return &url.Error{Op: "Get", URL: "http://x", Err: err} }
	for _, c := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{errRefused, true},
		{request(&net.OpError{Op: "read", Err: syscall.ECONNRESET}), true},
		{request(io.EOF), true},
		// As the S3 client says it.
		{request(errors.New("Connection closed by foreign host http://x. Retry again.")), true},
		{request(http.ErrSchemeMismatch), false},
		{request(&net.OpError{Op: "remote error", Err: errors.New("tls: handshake failure")}), false},
		{&url.Error{Op: "parse", URL: ":", Err: errors.New("missing protocol scheme")}, false},
		{request(&net.DNSError{Err: "no such host", Name: "s3.lan", IsNotFound: true}), true},
		{request(context.DeadlineExceeded), true},
		{&fs.PathError{Op: "read", Path: "/nfs/x", Err: syscall.ETIMEDOUT}, true},
		{storage.ErrUnreachable, true},
		{answer(http.StatusServiceUnavailable, "SlowDown"), true},
		{answer(http.StatusInternalServerError, "InternalError"), true},
		{answer(http.StatusBadGateway, "502 Bad Gateway"), true},
		{answer(http.StatusBadRequest, "RequestTimeout"), true},
		{answer(http.StatusForbidden, "AccessDenied"), false},
		{answer(http.StatusNotImplemented, "NotImplemented"), false},
		{answer(http.StatusInsufficientStorage, "XMinioStorageFull"), false},
		{errclass.Errorf(errclass.Corrupt, "%w", errRefused), false},
		{blob.ErrBlobNotFound, false},
		{&fs.PathError{Op: "read", Path: "/x", Err: syscall.EIO}, false},
		{errors.New("x"), false},
	} {
		if got := storage.IsUnavailable(c.err); got != c.want {
			t.Errorf("%v: %t, want %t", c.err, got, c.want)
		}
	}
}
