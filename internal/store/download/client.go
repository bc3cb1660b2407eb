package download

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
)

// messageBytes bounds what an error of a store says.
const messageBytes = 4 << 10

// Client asks a store for the copy of an image. Its errors have a class: Denied, or one that another copy or another
// attempt may help against.
type Client struct {
	HTTP *http.Client
	// Token is one of ServiceAccount for Audience.
	Token string
}

// ReadHashes returns the hashes of the pieces of a copy, at most so many.
func (c *Client) ReadHashes(ctx context.Context, of Copy, most int) ([]disk.PieceHash, error) {
	body, err := c.requestCopy(ctx, of.hashesURL())
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }() // It was only read.
	buffered := bufio.NewReader(body)
	var hashes []disk.PieceHash
	for {
		var next disk.PieceHash
		switch _, err := io.ReadFull(buffered, next[:]); {
		case errors.Is(err, io.EOF): // which is not that of half a hash
			return hashes, nil
		case err != nil && ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case err != nil:
			return nil, errclass.Errorf(errclass.Transient, "the connection broke while the hashes were read: %w", err)
		case len(hashes) == most:
			return nil, errclass.Errorf(errclass.Corrupt, "the copy has more than %d MiB, and the image does not", most)
		}
		hashes = append(hashes, next)
	}
}

// OpenData returns the pieces of a copy from one on, without those that are zero.
func (c *Client) OpenData(ctx context.Context, of Copy, from int) (io.ReadCloser, error) {
	return c.requestCopy(ctx, of.dataURL(from))
}

// requestCopy returns the body of a store's response.
func (c *Client) requestCopy(ctx context.Context, url string) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+c.Token)
	response, err := c.HTTP.Do(request)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil && errclass.Of(err) != errclass.None:
		return nil, err
	case err != nil:
		return nil, errclass.Errorf(errclass.Transient, "%w", err)
	case response.StatusCode == http.StatusOK:
		return response.Body, nil
	}
	defer func() { _ = response.Body.Close() }() // It was only read.
	text, _ := io.ReadAll(io.LimitReader(response.Body, messageBytes))
	return nil, describeRefusal(response.StatusCode, strings.TrimSpace(string(text)))
}

// describeRefusal returns the error of a store's response.
func describeRefusal(code int, text string) error {
	class := errclass.Transient
	switch code {
	case http.StatusUnauthorized, http.StatusForbidden:
		class = errclass.Denied
	case http.StatusNotFound:
		class = errclass.NotFound
	}
	if text == "" {
		text = fmt.Sprintf("it answers with status %d", code)
	}
	return errclass.Errorf(class, "the store: %s", text)
}
