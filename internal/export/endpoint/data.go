package endpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/varvebackup/varve/internal/errclass"
)

// DataRequest names the data of a volume.
type DataRequest struct {
	// URL is that of the volume's data.
	URL     string
	Dialect Dialect
	// Tag is the entity tag of the point in time; "": any.
	Tag string
}

// ReadAt fills p with the volume's bytes from offset on, whether they have changed or not. After a cut it goes on with the
// first byte that has not come.
func (c *Client) ReadAt(ctx context.Context, q DataRequest, p []byte, offset int64) error {
	address, err := parseURL(q.URL)
	if err != nil || len(p) == 0 {
		return err
	}
	return c.retry(ctx, func() (bool, error) {
		n, err := c.readRange(ctx, q, address, p, offset)
		p, offset = p[n:], offset+int64(n)
		return n > 0, err
	})
}

// readRange makes one attempt at filling p, and returns how much of it came.
func (c *Client) readRange(ctx context.Context, q DataRequest, address *url.URL, p []byte, offset int64) (int, error) {
	header, u, last := http.Header{}, *address, offset+int64(len(p))-1
	if q.Tag != "" {
		header.Set("If-Match", q.Tag)
	}
	want, part := http.StatusPartialContent, fmt.Sprintf("bytes %d-%d/", offset, last)
	if q.Dialect == KubeVirt {
		want, part = http.StatusOK, ""
		u.RawQuery = url.Values{"offset": {strconv.FormatInt(offset, 10)}, "length": {strconv.Itoa(len(p))}}.Encode()
	} else {
		header.Set("Range", fmt.Sprintf("bytes=%d-%d", offset, last))
	}
	response, err := c.get(ctx, &u, header)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close() //nolint:errcheck // it was only read
	if got := response.Header.Get("Content-Range"); response.StatusCode != want || len(got) < len(part) || got[:len(part)] != part {
		return 0, errclass.Errorf(errclass.Invalid, "the endpoint answers a request for bytes %d-%d with status %d and range %q", offset, last, response.StatusCode, got)
	}
	if tag := response.Header.Get("ETag"); q.Tag != "" && tag != "" && tag != q.Tag {
		return 0, errclass.Errorf(ErrOtherPoint, "the endpoint sends another point in time")
	}
	n, err := io.ReadFull(response.Body, p)
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return n, classifyFailure(ctx, err)
	}
	// Only an answer that was read to its end leaves its connection for the next one.
	if extra, _ := io.CopyN(io.Discard, response.Body, 1); extra > 0 {
		return 0, errclass.Errorf(errclass.Invalid, "the endpoint sends more than bytes %d-%d", offset, last)
	}
	return n, nil
}
