package blobhttp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/kopia/kopia/repo/blob"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/varvebackup/varve/internal/errclass"
)

// Type is the type of storage in a connection to a client.
const Type = "varve-http"

// Connection is what kopia opens a client by. It is good in this process alone: a file cannot hold it.
type Connection struct{ client *Client }

// Open returns the client of a connection.
func (c *Connection) Open() (*Client, error) {
	if c.client == nil {
		return nil, errclass.Errorf(errclass.Invalid, "a storage that another process serves cannot be connected to from a file")
	}
	return c.client, nil
}

// String returns the name of the storage.
func (c *Connection) String() string { return c.client.name }

// retries are the pauses before a request is sent again that got no answer, a minute in all: an API server that forwards it may restart. They
// have no cap, with which they would end.
var retries = wait.Backoff{Duration: 500 * time.Millisecond, Factor: 1.5, Steps: 10}

// idleConnections is how many connections stay open between requests: more than there are workers. Their number has no limit: a request that waits
// for a connection would look like one that waits for an answer.
const idleConnections = 64

// Client is a storage that a Handler serves. It is safe for concurrent use. Requests that get no answer are sent again for about a minute,
// and then fail with errclass.Transient.
type Client struct {
	name    string
	http    http.Client
	retries wait.Backoff
	key     Key
}

// NewClient returns a client of the handler that dial reaches. Errors call the storage by its name. An error of dial that has another class
// than Transient is final.
func NewClient(name string, dial func(context.Context) (net.Conn, error)) *Client {
	return &Client{name: name, retries: retries, http: http.Client{Transport: &http.Transport{
		DialContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		MaxIdleConnsPerHost: idleConnections, DisableCompression: true, ExpectContinueTimeout: math.MaxInt64,
	}}}
}

// Authorize has the client send a key with each request, and returns the client.
func (c *Client) Authorize(k Key) *Client {
	c.key = k
	return c
}

// Shut ends the connections. Close, which kopia calls whenever it has opened the storage, leaves them.
func (c *Client) Shut() { c.http.CloseIdleConnections() }

// Ping asks whether the handler is there.
func (c *Client) Ping(ctx context.Context) error {
	return c.send(ctx, http.MethodGet, pingPath, nil, nil, discard)
}

func discard(io.Reader, int64) error { return nil }

func blobPath(id blob.ID) string { return blobsPath + "/" + url.PathEscape(string(id)) }

// GetBlob implements blob.Storage.
func (c *Client) GetBlob(ctx context.Context, id blob.ID, offset, length int64, out blob.OutputBuffer) error {
	query := url.Values{}
	if length >= 0 {
		query.Set(offsetParameter, strconv.FormatInt(offset, 10))
		query.Set(lengthParameter, strconv.FormatInt(length, 10))
	}
	return c.send(ctx, http.MethodGet, blobPath(id), query, nil, func(body io.Reader, bytes int64) error {
		out.Reset()
		n, err := io.Copy(out, body)
		if err == nil && n != bytes {
			err = io.ErrUnexpectedEOF
		}
		if err == nil && length >= 0 && n != length {
			err = errclass.Errorf(blob.ErrInvalidRange, "%s: %d bytes of blob %s, want %d", c.name, n, id, length)
		}
		return err
	})
}

// GetMetadata implements blob.Storage.
func (c *Client) GetMetadata(ctx context.Context, id blob.ID) (blob.Metadata, error) {
	var m metadata
	err := c.send(ctx, http.MethodGet, metadataPath+"/"+url.PathEscape(string(id)), nil, nil, decode(&m))
	return m.blob(), err
}

// ListBlobs implements blob.Storage. It tells call of no blob twice: a list that ends in its middle fails with ErrCutOff. call must not make
// requests that go the same way as the rest of the list, which may be in front of their answers.
func (c *Client) ListBlobs(ctx context.Context, prefix blob.ID, call func(blob.Metadata) error) error {
	return c.send(ctx, http.MethodGet, blobsPath, url.Values{prefixParameter: {string(prefix)}}, nil, func(body io.Reader, _ int64) error {
		lines, told := json.NewDecoder(body), false
		for {
			var m metadata
			err := lines.Decode(&m)
			switch {
			case err != nil && told:
				return &finalError{fmt.Errorf("%s: %w: %w", c.name, ErrCutOff, err)}
			case err != nil:
				return fmt.Errorf("list blobs: %w", noEnd(err))
			case m.Failure != nil:
				return &finalError{m.Failure.err(c.name)}
			case m.End:
				return nil
			}
			told = true
			if err := call(m.blob()); err != nil {
				return &finalError{err}
			}
		}
	})
}

// noEnd returns err, but an end is none where more was expected.
func noEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// PutBlob implements blob.Storage. No option that keeps blobs is supported, as with directories.
func (c *Client) PutBlob(ctx context.Context, id blob.ID, data blob.Bytes, o blob.PutOptions) error {
	if o.HasRetentionOptions() || o.DoNotRecreate {
		return errclass.Errorf(blob.ErrUnsupportedPutBlobOption, "%s: %s", c.name, blob.ErrUnsupportedPutBlobOption)
	}
	if !o.SetModTime.IsZero() {
		return blob.ErrSetTimeUnsupported
	}
	var m metadata
	err := c.send(ctx, http.MethodPut, blobPath(id), nil, data, decode(&m))
	if err == nil && o.GetModTime != nil {
		*o.GetModTime = m.Time
	}
	return err
}

// DeleteBlob implements blob.Storage.
func (c *Client) DeleteBlob(ctx context.Context, id blob.ID) error {
	return c.send(ctx, http.MethodDelete, blobPath(id), nil, nil, discard)
}

// GetCapacity implements blob.Storage.
func (c *Client) GetCapacity(ctx context.Context) (blob.Capacity, error) {
	var v capacity
	err := c.send(ctx, http.MethodGet, capacityPath, nil, nil, decode(&v))
	return blob.Capacity{SizeB: v.Size, FreeB: v.Free}, err
}

// ConnectionInfo implements blob.Storage.
func (c *Client) ConnectionInfo() blob.ConnectionInfo {
	return blob.ConnectionInfo{Type: Type, Config: &Connection{client: c}}
}

// DisplayName implements blob.Storage.
func (c *Client) DisplayName() string { return c.name }

// ExtendBlobRetention implements blob.Storage.
func (*Client) ExtendBlobRetention(context.Context, blob.ID, blob.ExtendOptions) error {
	return blob.ErrUnsupportedObjectLock
}

// Close and FlushCaches do nothing.
func (*Client) Close(context.Context) error       { return nil }
func (*Client) FlushCaches(context.Context) error { return nil }
func (*Client) IsReadOnly() bool                  { return false }

func decode(into any) func(io.Reader, int64) error {
	return func(body io.Reader, _ int64) error { return noEnd(json.NewDecoder(body).Decode(into)) }
}

// ErrCutOff is of class Transient: a list ended in its middle.
var ErrCutOff = errclass.New(errclass.Transient, "the list of blobs was cut off")

// finalError is an error that sending the request again does not help.
type finalError struct{ err error }

func (e *finalError) Error() string { return e.err.Error() }
func (e *finalError) Unwrap() error { return e.err }

// send sends a request until it is answered, and passes a good answer's body to read, with its length if it has one. A body that breaks off
// has the request sent again.
func (c *Client) send(ctx context.Context, method, path string, query url.Values, data blob.Bytes, read func(body io.Reader, bytes int64) error) error {
	pauses := c.retries
	for {
		err := c.sendOnce(ctx, method, path, query, data, read)
		var final *finalError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &final):
			return final.err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case pauses.Steps == 0:
			return errclass.Errorf(errclass.Transient, "%s: no answer: %w", c.name, err)
		}
		pause := time.NewTimer(pauses.Step())
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return context.Cause(ctx)
		}
	}
}

func (c *Client) sendOnce(ctx context.Context, method, path string, query url.Values, data blob.Bytes, read func(io.Reader, int64) error) (err error) {
	// The host is a name for people: dial knows where it is.
	r, err := http.NewRequestWithContext(ctx, method, "http://storage"+path, nil)
	if err != nil {
		return &finalError{err}
	}
	r.URL.RawQuery = query.Encode()
	if c.key != (Key{}) {
		r.Header.Set("Authorization", bearer+c.key.text)
	}
	if data != nil {
		r.Body, r.ContentLength = data.Reader(), int64(data.Length())
		if r.ContentLength == 0 {
			r.Body = http.NoBody
		} else {
			// The handler reads the blob as soon as it comes. What nobody reads would hold up everything behind it on a forwarded port.
			r.Header.Set("Expect", "100-continue")
		}
	}
	answer, err := c.http.Do(r)
	if err != nil {
		if class := errclass.Of(err); class != errclass.None && class != errclass.Transient {
			var request *url.Error
			if errors.As(err, &request) {
				err = request.Err // of dial: the request has nothing to do with it
			}
			return &finalError{err}
		}
		return err
	}
	defer func() { err = errors.Join(err, answer.Body.Close()) }()
	if answer.StatusCode >= http.StatusBadRequest {
		return c.readFailure(answer)
	}
	return read(answer.Body, answer.ContentLength)
}

// maxFailureBytes is how much of a failure is read.
const maxFailureBytes = 64 << 10

// readFailure returns the error of the storage, or one that has the request sent again if it is somebody else's.
func (c *Client) readFailure(answer *http.Response) error {
	var f failure
	if err := json.NewDecoder(io.LimitReader(answer.Body, maxFailureBytes)).Decode(&f); err != nil || f.Code == "" {
		return fmt.Errorf("%s: %s", c.name, answer.Status)
	}
	err := f.err(c.name)
	if errors.Is(err, errclass.Transient) {
		return err
	}
	return &finalError{err}
}
