package endpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export/source"
)

// DataRequest names the data of a volume.
type DataRequest struct {
	// URL is that of the volume's data.
	URL     string
	Dialect Dialect
	// Tag is the entity tag of the point in time; "": any.
	Tag string
	// Server is the certificate of the server, as MapStats has it. It counts where there is no Tag; "": any.
	Server string
	// Bytes is the size of the disk; 0: not known.
	Bytes int64
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
	if q.Dialect == KubeVirt {
		u.RawQuery = url.Values{"offset": {strconv.FormatInt(offset, 10)}, "length": {strconv.Itoa(len(p))}}.Encode()
	} else {
		header.Set("Range", fmt.Sprintf("bytes=%d-%d", offset, last))
	}
	response, err := c.get(ctx, &u, header)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close() //nolint:errcheck // it was only read
	if !q.isRange(response, offset, last) {
		return 0, errclass.Errorf(errclass.Invalid, "the endpoint answers a request for bytes %d-%d of %d with status %d and range %.80q", offset, last, q.Bytes, response.StatusCode, response.Header.Get("Content-Range"))
	}
	if q.Tag == "" {
		if err := checkServer(response, q.Server); err != nil {
			return 0, err
		}
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

// isRange says whether an answer has the bytes from first to last.
func (q *DataRequest) isRange(response *http.Response, first, last int64) bool {
	if q.Dialect == KubeVirt {
		return response.StatusCode == http.StatusOK
	}
	total, found := strings.CutPrefix(response.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-%d/", first, last))
	return found && response.StatusCode == http.StatusPartialContent && (q.Bytes == 0 || total == "*" || total == strconv.FormatInt(q.Bytes, 10))
}

// sizeOf asks for the first byte of a disk, to learn how many there are.
func (c *Client) sizeOf(ctx context.Context, q DataRequest) (bytes int64, err error) {
	bytes, _, err = c.lookAt(ctx, q)
	return bytes, err
}

// lookAt asks for the first byte of a disk, to learn how many there are, and who serves them, as serverOf has it.
func (c *Client) lookAt(ctx context.Context, q DataRequest) (bytes int64, server string, err error) {
	address, err := parseURL(q.URL)
	if err != nil {
		return 0, "", err
	}
	header := http.Header{"Range": {"bytes=0-0"}}
	if q.Tag != "" {
		header.Set("If-Match", q.Tag)
	}
	err = c.retry(ctx, func() (bool, error) {
		response, err := c.get(ctx, address, header)
		if err != nil {
			return false, err
		}
		defer response.Body.Close() //nolint:errcheck // it was only read
		if q.Tag == "" {
			if err := checkServer(response, q.Server); err != nil {
				return false, err
			}
		}
		server = serverOf(response)
		text, _ := strings.CutPrefix(response.Header.Get("Content-Range"), "bytes 0-0/")
		if bytes, err = strconv.ParseInt(text, 10, 64); err != nil || response.StatusCode != http.StatusPartialContent || bytes <= 0 || bytes > source.MaxBytes {
			return false, errclass.Errorf(errclass.Invalid, "neither the map nor the data says how large the disk is: status %d and range %.80q", response.StatusCode, response.Header.Get("Content-Range"))
		}
		return false, nil
	})
	return bytes, server, err
}

// goesOn says whether a disk has a byte where a map ends that does not say how large the disk is. Servers refuse that in different ways,
// also by breaking the connection, so there is one attempt.
func (c *Client) goesOn(ctx context.Context, q DataRequest, end int64) (bool, error) {
	address, err := parseURL(q.URL)
	if err != nil {
		return false, err
	}
	n, err := c.readRange(ctx, q, address, make([]byte, 1), end)
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	if errors.Is(err, ErrOtherPoint) {
		return false, &Error{err}
	}
	return n > 0, nil
}
