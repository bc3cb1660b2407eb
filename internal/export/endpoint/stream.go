package endpoint

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/stream"
)

// Position is how much of a volume there is already: everything before From.
type Position struct {
	Volume string
	From   int64
}

// StreamRequest asks for the regions of volumes with their content.
type StreamRequest struct {
	// URL is that of the stream of a volume, or, with Backup, of the stream of all volumes.
	URL    string
	Backup bool
	// Volumes are the volumes to read. Without any, everything is read from its beginning. Of a stream of a volume there is
	// one.
	Volumes []Position
	// Tag is the entity tag of the point in time to go on with. It may be empty if every volume is read from its beginning.
	Tag string
	// Begin is called once, before Chunk, with the tag and the volumes of the first answer. It may be nil.
	Begin func(tag string, volumes []stream.Volume) error
	// Chunk gets the content of the volumes: that of each in order, each byte once, in one goroutine. Checksums hold. Data is
	// its until it returns. An error ends the request and is returned as it is.
	Chunk func(volume int, c export.Chunk) error
}

// StreamStats say what a stream cost.
type StreamStats struct {
	// ReceivedBytes is the length of all answers, and UsefulBytes how much of it was handed on. What is between them is
	// frames' heads, and what was in flight when a connection broke.
	ReceivedBytes, UsefulBytes int64
	// Attempts is how many requests there were.
	Attempts int
}

// Stream reads volumes, and goes on after a cut. At its end everything has come, and the totals hold.
func (c *Client) Stream(ctx context.Context, q StreamRequest) (StreamStats, error) {
	r := streamReader{client: c, request: q, tag: q.Tag, positions: slices.Clone(q.Volumes)}
	var err error
	if r.url, err = parseURL(q.URL); err != nil {
		return r.stats, err
	}
	if !q.Backup && len(q.Volumes) > 1 {
		return r.stats, errclass.Errorf(errclass.Invalid, "the stream of a volume does not have %d", len(q.Volumes))
	}
	err = c.retry(ctx, func() (bool, error) {
		before := r.stats.UsefulBytes + r.zeroBytes
		err := r.readOnce(ctx)
		return r.stats.UsefulBytes+r.zeroBytes > before, err
	})
	var caller *sinkError
	if errors.As(err, &caller) {
		err = caller.err
	}
	return r.stats, err
}

// streamReader reads one stream in one or more attempts.
type streamReader struct {
	client  *Client
	request StreamRequest
	url     *url.URL
	tag     string
	// positions say how far the volumes have come. They are empty before the first answer, if the request names no volumes.
	positions []Position
	// volumes are those of the first answer.
	volumes   []stream.Volume
	stats     StreamStats
	zeroBytes int64
}

func (r *streamReader) readOnce(ctx context.Context) error {
	r.stats.Attempts++
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the request, if there is more of it
	header := http.Header{}
	if r.tag != "" {
		header.Set("If-Match", r.tag)
	}
	response, err := r.client.get(ctx, r.continuedURL(), header)
	if err != nil {
		return err
	}
	defer response.Body.Close() //nolint:errcheck // it was only read
	if kind := response.Header.Get("Content-Type"); kind != stream.ContentType {
		return errclass.Errorf(errclass.Invalid, "the endpoint sends %q and no stream", kind)
	}
	decoder, err := stream.NewDecoder(&countedReader{Reader: response.Body, bytes: &r.stats.ReceivedBytes})
	if err != nil {
		return r.explain(ctx, err)
	}
	if err := r.begin(response.Header.Get("ETag"), decoder.Volumes()); err != nil {
		return err
	}
	for {
		frame, err := decoder.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return r.explain(ctx, err)
		}
		if err := r.request.Chunk(frame.Volume, frame.Chunk); err != nil {
			return &sinkError{err}
		}
		r.positions[frame.Volume].From = frame.End()
		if frame.Data != nil {
			r.stats.UsefulBytes += frame.Length
		} else {
			r.zeroBytes += frame.Length
		}
	}
}

// sinkError is an error of the caller's, which ends the request whatever its class is.
type sinkError struct{ err error }

func (e *sinkError) Error() string { return e.err.Error() }

// explain returns the caller's reason for the end of a stream, if it has one.
func (r *streamReader) explain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// continuedURL names the volumes, and how far they have come.
func (r *streamReader) continuedURL() *url.URL {
	u := *r.url
	query := url.Values{}
	for _, p := range r.positions {
		if r.request.Backup {
			query.Add("volume", p.Volume)
		}
		if r.tag != "" {
			query.Add("from", strconv.FormatInt(p.From, 10))
		}
	}
	u.RawQuery = query.Encode()
	return &u
}

// begin compares an answer with what was asked for and with the first answer.
func (r *streamReader) begin(tag string, volumes []stream.Volume) error {
	switch {
	case tag == "":
		return errclass.Errorf(errclass.Invalid, "the endpoint sends no entity tag")
	case r.tag != "" && tag != r.tag:
		return errclass.Errorf(ErrOtherPoint, "the endpoints went on with another point in time")
	}
	if len(r.positions) == 0 {
		for _, v := range volumes {
			r.positions = append(r.positions, Position{Volume: v.Name})
		}
	}
	if len(volumes) != len(r.positions) {
		return errclass.Errorf(errclass.Corrupt, "the stream has %d volumes, not %d", len(volumes), len(r.positions))
	}
	for i, v := range volumes {
		if p := r.positions[i]; v.Name != p.Volume || v.From != p.From {
			return errclass.Errorf(errclass.Corrupt, "the stream has volume %s from %d on, not %s from %d on", v.Name, v.From, p.Volume, p.From)
		}
	}
	if r.volumes == nil {
		r.tag, r.volumes = tag, slices.Clone(volumes)
		if r.request.Begin != nil {
			if err := r.request.Begin(tag, volumes); err != nil {
				return &sinkError{err}
			}
		}
	}
	for i, v := range volumes {
		if first := r.volumes[i]; v.Bytes != first.Bytes || v.Incremental != first.Incremental || v.PointInTime != first.PointInTime {
			return errclass.Errorf(ErrOtherPoint, "volume %s went on as another disk", v.Name)
		}
	}
	return nil
}

// countedReader counts what is read.
type countedReader struct {
	io.Reader
	bytes *int64
}

func (r *countedReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	*r.bytes += int64(n)
	return n, err
}
